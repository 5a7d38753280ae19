// Messages between the ranks of a job. Only one thread of a rank uses its transport.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/bytes.h"
#include "lib/base/result.h"

namespace ckpt {

class Transport {
 public:
  using Request = uint64_t;
  virtual ~Transport() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;
  /// Messages of one sender with the same tag arrive in order. The bytes are lent until `wait` has returned, which
  /// every request must be given to once. A message may be shorter than what it is received into.
  virtual Result<Request> send(uint32_t to, uint32_t tag, ByteSpan data) = 0;
  virtual Result<Request> receive(uint32_t from, uint32_t tag, MutableByteSpan into) = 0;
  virtual Result<void> wait(Request request) = 0;
  /// What each rank gives, by rank. All ranks call it, in the same order: also a barrier.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine) = 0;
};

/// Ranks that are threads of this process: calls `work` for each and returns what each returned. kNoRoom: no thread.
Result<std::vector<Result<void>>> run_locally(uint32_t ranks, const std::function<Result<void>(Transport&)>& work);

}  // namespace ckpt
