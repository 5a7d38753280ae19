// The pickles of a checkpoint, scanned: what a loader would import from each.
#pragma once

#include <mutex>

#include "lib/model/verify/verify.h"
#include "formats/zip/zip.h"

namespace ckpt::model {

/// Gathers imports and findings. Thread-safe.
class PickleScanner {
 public:
  using Note = std::function<void(tensor::Finding)>;
  /// `trusted`: dangerous names are warnings, as unknown ones are without `strict`.
  PickleScanner(bool strict, bool trusted, Note note) : strict_(strict), trusted_(trusted), note_(std::move(note)) {}

  /// A pickle whose bytes begin at `offset` of `file`. `expect_end`: that it breaks off is damage. Returns its length.
  uint64_t scan(ByteSpan pickle, const std::string& key, const std::string& file, uint64_t offset, bool expect_end);
  /// A torch.save file: every pickle of a zip, or those of a legacy file in a row. `base`: where the source begins in
  /// `file`.
  Result<void> scan_file(const zip::ByteSource& source, const std::string& key, const std::string& file,
                          uint64_t base);
  /// Pickles in a row, as far as there are any; the first decides. False: there is none.
  bool scan_row(ByteSpan bytes, const std::string& key, const std::string& file, uint64_t base);
  std::map<std::string, ImportedName> take();

 private:
  void add(const pickle::Import& import, const std::string& key, const std::string& file, uint64_t offset);

  const bool strict_, trusted_;
  Note note_;
  std::mutex mutex_;
  std::map<std::string, ImportedName> imports_;
};

}  // namespace ckpt::model
