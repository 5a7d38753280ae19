// A store opened: its settings, its index in memory, what was pushed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/progress.h"
#include "lib/repository/backend.h"
#include "lib/repository/documents.h"
#include "lib/repository/index.h"
#include "lib/repository/tree.h"

namespace ckpt::repository {

struct OpenOptions {
  std::string place;               ///< a folder or a URL
  std::filesystem::path key_file;  ///< empty: none
  bool create = false;             ///< a store that is not there is made
};

class Repository {
 public:
  /// kNotFound: there is no store. kPermission: it has a key, and this is another one or none.
  static Result<std::unique_ptr<Repository>> open(const OpenOptions& options, const Cancel& cancel);
  /// The same of a backend that is open. `place` is for messages.
  static Result<std::unique_ptr<Repository>> open(std::unique_ptr<Backend> backend, const OpenOptions& options,
                                                  const Cancel& cancel);

  Backend& backend() { return *backend_; }
  const Cancel& cancel() const { return cancel_; }
  const IdBuilder& ids() const { return ids_; }
  const IdBuilder& seal() const { return seal_; }

  /// Reads where all chunks lie, anew. Index objects that are damaged, and packs, are passed over: `faults` says so.
  Result<void> load();
  const Index& index() const { return index_; }
  Index& index() { return index_; }
  /// What `load` found damaged, one line each.
  const std::vector<std::string>& faults() const { return faults_; }
  /// The index objects that `load` has read.
  const std::vector<std::string>& index_objects() const { return index_objects_; }
  /// Packs of which `load` found that neither an index nor they themselves say what is in them.
  const std::vector<std::string>& unreadable_packs() const { return unreadable_packs_; }
  /// Marks the packs of these as condemned.
  void honour(const std::vector<Condemned>& condemned);

  /// By name. `damaged`: names of those that cannot be read are added to it; null: the first such is an error.
  Result<std::vector<Ref>> refs(std::vector<Error>* damaged = nullptr);
  /// kNotFound.
  Result<Ref> ref(const std::string& name);

  struct Named {
    std::string name;
    Condemned condemned;
  };
  Result<std::vector<Named>> condemned();

  /// kPermission: others than this user may have the store say anything, and nobody has a key: what it says is not to
  /// be trusted.
  Result<void> check_trusted() const;

 private:
  Repository(std::unique_ptr<Backend> backend, const Cancel& cancel) : backend_(std::move(backend)), cancel_(cancel) {}
  Result<void> read_config(const OpenOptions& options, const std::vector<std::byte>& key);
  Result<void> write_config(const std::vector<std::byte>& key);
  Result<void> take_index_objects(std::vector<IndexedPack>& out);

  std::unique_ptr<Backend> backend_;
  const Cancel& cancel_;
  IdBuilder ids_, seal_;
  Index index_;
  std::vector<std::string> faults_, index_objects_, unreadable_packs_;
};

/// The table of a pack, from its end.
Result<PackTable> read_pack_table(Backend& backend, const StoredObject& pack);

/// A push under way, for those that collect garbage: see README.md. The destructor takes the marker away.
class PushMarker {
 public:
  /// Put before anything is looked at.
  static Result<std::unique_ptr<PushMarker>> put(Backend& backend, const std::string& kind = "push");
  ~PushMarker();
  const std::string& id() const { return id_; }
  /// These were seen, and nothing will refer to what is in them.
  Result<void> honour(const std::vector<Repository::Named>& condemned);
  /// Once in a while: says that somebody is still there. kBusy: nobody was for so long that it counts as dead.
  Result<void> refresh();
  /// What is about to get its name: collections keep what it needs from here on, whoever took this push for dead.
  Result<void> put_draft(const std::string& ref);
  /// kBusy: somebody has taken this for dead.
  Result<void> check_alive();

 private:
  explicit PushMarker(Backend& backend) : backend_(backend) {}
  Result<void> put_again();
  Result<void> check_gap() const;
  Backend& backend_;
  std::string id_;
  Marker marker_;
  uint64_t refreshed_us_ = 0, refreshed_at_s_ = 0;  ///< since boot; since 1970
  bool there_ = false, drafted_ = false;
};

/// What lies beside the marker of an id in "pushes".
inline constexpr const char* kDraft = ".name";
inline constexpr const char* kTakenForDead = ".dead";

/// kGone: its process on this host is not there any more. kSilent: on another it was not refreshed for `grace_s`; it
/// may live all the same.
enum class Liveness { kAlive, kGone, kSilent };
Liveness liveness(const Marker& marker, uint64_t grace_s);
/// Whether that was so long ago, by RFC 3339; what is no time was.
bool is_older(const std::string& time, uint64_t seconds);

}  // namespace ckpt::repository
