// dump and pre-dump whose image lies at a URL.
#pragma once

#include <memory>

#include "cli/dump_flags.h"
#include "lib/remote/scratch_folder.h"
#include "lib/remote/upload.h"

namespace ckpt::cli {

/// The image is made in a folder below TMPDIR, and uploaded before it counts: until then the capture can be taken back.
class ImageUpload {
 public:
  /// Null: -f names a folder. Else opens the URL, and has the capture write to it. kUsage: an image is there, or a
  /// parent was asked for. kUnsupported: the process is in other namespaces, from which this is called. `flags` and
  /// `context` must outlive it.
  static Result<std::unique_ptr<ImageUpload>> prepare(DumpFlags& flags, Context& context);

  /// What the capture came to: a failure takes back what was uploaded.
  void finish(Result<engine::DumpReport>& outcome);

 private:
  ImageUpload(DumpFlags& flags, Context& context) : url_(flags.dir), context_(context) {}
  Result<void> upload(const std::filesystem::path& folder);

  const std::string url_;
  Context& context_;
  remote::ScratchFolder scratch_;
  std::unique_ptr<remote::Upload> objects_;
  bool uploaded_ = false;
};

}  // namespace ckpt::cli
