// The image that a capture writes: its parent, its writer, and the numbers of its memory spaces.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/result.h"
#include "lib/engine/capture_context.h"
#include "lib/engine/tidier.h"
#include "lib/engine/tracees.h"
#include "lib/store/image.h"

namespace ckpt::engine {

/// Until its commit, its end takes away what has been written.
class NewImage {
 public:
  explicit NewImage(CaptureContext& context) : context_(context) {}
  NewImage(const NewImage&) = delete;
  NewImage& operator=(const NewImage&) = delete;
  ~NewImage();

  /// --prev, or the image whose tracking a tracking daemon holds. Tracking that belongs to another image than --prev is
  /// of no use.
  Result<void> choose_parent(Tracees& tracees);
  /// Empty: there is none.
  const std::filesystem::path& parent() const { return parent_; }
  std::string parent_id() const { return parent_manifest_ ? parent_manifest_->id : std::string(); }

  Result<void> make_writer();
  /// Nothing is to be written after all.
  void discard() { writer_.reset(); }
  /// The writer, and who takes away what it has written should ckpt be killed.
  Result<void> open();
  store::ImageWriter& writer() { return *writer_; }

  /// Numbers that mean the same in the parent image and in the tree of `keep_numbers`.
  Result<void> number_spaces(store::TreeImage& tree) const;
  /// What was written so far uses the numbers of `tree`.
  void keep_numbers(store::TreeImage tree) { numbered_ = std::move(tree); }

 private:
  CaptureContext& context_;
  std::filesystem::path parent_;
  std::optional<store::Manifest> parent_manifest_;
  store::TreeImage numbered_;
  std::unique_ptr<store::ImageWriter> writer_;
  std::optional<Tidier> tidier_;
};

}  // namespace ckpt::engine
