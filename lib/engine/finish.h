// The end of a capture, after the freeze window: deferred copies, the commit, and what becomes of the tree.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/engine/capture.h"
#include "lib/engine/freeze_window.h"
#include "lib/memory/copy.h"

namespace ckpt::engine {

/// The steps are called in their order. Until `commit` has succeeded the tree is as the freeze window left it.
class Finish {
 public:
  Finish(Capture& capture, FreezeWindow& window) : capture_(capture), context_(capture.context), window_(window) {}

  /// What the freeze window holds is written, then what needs no hurry: the snapshots, and which pages are as they
  /// were.
  Result<void> copy_deferred();
  Result<void> commit();
  /// The tree goes on, stops or ends. The image is there whatever comes now.
  Result<DumpReport> end_tree();

 private:
  Result<void> plan_snapshot(store::ProcessImage& image);
  Result<void> copy_snapshots(const std::vector<capture::SpaceBlocks>& parts);
  Result<void> freeze_snapshotted(std::vector<proc::FrozenProcess>& frozen);
  uint64_t faults() const;
  Result<void> write_contents();
  void count_usage();
  Result<void> check_madvise();
  Result<void> validate(const std::filesystem::path& dir);
  Result<void> rehearse_image(const std::filesystem::path& dir);
  void hand_over_tracking();
  bool ends_with_init() const;
  Result<void> hand_over();
  Result<DumpReport> end_with_init();
  Result<void> kill_tree();
  DumpReport report(std::string target_state);

  Capture& capture_;
  CaptureContext& context_;
  FreezeWindow& window_;
};

}  // namespace ckpt::engine
