// The parts of upload.h that its own sources share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/base/unique_fd.h"
#include "lib/remote/upload.h"

namespace ckpt::remote {

/// Objects that make a checkpoint readable, whatever its format: they go first where it goes, and come last.
bool describes_others(const std::string& name);

/// A file under way, and what is known of its upload.
struct Upload::Staged {
  Staged(std::string n, PartSizes s) : name(std::move(n)), sizes(s) {}

  const std::string name;  ///< of the object
  const PartSizes sizes;
  uint64_t size = 0;               ///< once it is finished
  std::vector<std::string> parts;  ///< what the server calls them
  size_t landed = 0;               ///< of these, how many are there
  Buffer held;
  UniqueFd file;  ///< of an object that is put whole, until that has been done
  bool is_held = false, finished = false, published = false, put = false;
  bool replaces = false;  ///< one that an earlier attempt has put
  std::mutex beginning;  ///< of `upload`: the first part begins it
  std::optional<Result<std::string>> upload;
  bool uploads() const { return upload && *upload; }
  /// All of its parts are there.
  bool complete() const { return finished && uploads() && !parts.empty() && landed == parts.size(); }
};

/// Bytes on their way; they have landed when it goes, also where a job is dropped.
class Upload::Ticket {
 public:
  Ticket(Upload& owner, Buffer bytes) : bytes_(std::move(bytes)), size_(bytes_.size()), owner_(owner) {}
  ~Ticket() {
    {
      std::lock_guard lock(owner_.mutex_);
      owner_.in_flight_ -= size_;
    }
    owner_.give_back(std::move(bytes_));
    owner_.landed_.notify_all();
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ByteSpan bytes() const { return bytes_; }

 private:
  Buffer bytes_;
  const uint64_t size_;
  Upload& owner_;
};

}  // namespace ckpt::remote
