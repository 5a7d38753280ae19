// The image of a job of many ranks (lib/store/job.h) for people and for programs: all its parts together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/command.h"
#include "lib/store/job.h"

namespace ckpt::cli {

/// kWhole: sound, as far as was looked; kElsewhere: it was written on another host, and is not here.
enum class PartState { kWhole, kElsewhere, kDamaged };
const char* part_state_name(PartState state);
struct PartView {
  PartState state = PartState::kWhole;
  std::string finding;  ///< what is wrong with it
};
/// By manifests alone.
std::vector<PartView> look_at_parts(const std::filesystem::path& folder, const store::Job& job);

/// `common`: also how much memory those parts that are here have in common. `topology`: a file, in the place of what
/// the job was told; empty: none.
Result<void> inspect_job(Context& context, const std::filesystem::path& folder, bool common,
                         const std::string& topology);
/// Every byte of the parts that are here, parents included: kCorrupt; kPartial: sound, but for those elsewhere.
Result<void> verify_job(Context& context, const std::filesystem::path& folder);
/// A job among folders that are to be removed: those of its parts that are here, in its place.
Result<std::vector<std::filesystem::path>> parts_here(const std::filesystem::path& folder, Context& context);

}  // namespace ckpt::cli
