// dump and pre-dump whose image lies at a URL.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cli/dump_flags.h"
#include "lib/remote/scratch_folder.h"
#include "lib/remote/upload.h"

namespace ckpt::cli {

/// What --prev names: a folder, also one of placeholders, or the image that is chosen in it (@latest). kUsage: it is at
/// a URL, and the image is not.
Result<void> resolve_parent(DumpFlags& flags, Context& context);

/// Pages are uploaded while they are captured, and never lie on this host but where a process would have to wait for
/// the network. The rest of the image, which is small, is made in a folder below TMPDIR, and uploaded before the image
/// counts: until then the capture can be taken back. With --rehearse all of it is made there first.
class ImageUpload {
 public:
  /// Null: -f names a folder. Else opens the URL, and has the capture write to it. kUsage: an image is there, or its
  /// parent is not beside it. kUnsupported: a program speaks for it, and this is called in other namespaces, those that
  /// the process is in. `flags` and `context` must outlive it.
  static Result<std::unique_ptr<ImageUpload>> prepare(DumpFlags& flags, Context& context);

  /// What the capture came to: a failure takes back what was uploaded.
  void finish(Result<engine::DumpReport>& outcome);

 private:
  ImageUpload(DumpFlags& flags, Context& context) : url_(flags.dir), context_(context) {}
  Result<void> choose_folder(DumpFlags& flags);
  void attach(engine::DumpOptions& options);
  Result<void> take(const std::string& file, uint64_t offset, ByteSpan data);
  Result<void> upload(const std::filesystem::path& folder);
  Result<void> upload_file(const std::filesystem::path& path);
  void say_what_was_dear();

  const std::string url_;
  Context& context_;
  remote::ScratchFolder scratch_;
  std::unique_ptr<remote::Upload> objects_;
  std::mutex mutex_;  ///< of pages_
  std::map<std::string, std::unique_ptr<io::OutputFile>> pages_;
  bool uploaded_ = false;
};

}  // namespace ckpt::cli
