#include "cli/saves.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/model_view.h"
#include "formats/format.h"
#include "lib/base/io.h"
#include "lib/schedule/saves.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

using schedule::Candidate;

constexpr size_t kMostEntries = 100'000;

/// The saves in one folder.
struct Saves {
  std::vector<Candidate> images, checkpoints;
};

bool may_be_checkpoint(const fs::path& path, const std::string& name) {
  std::error_code ec;
  if (fs::is_directory(path, ec)) return schedule::is_step_name(name) || formats::looks_like_checkpoint(path);
  return fs::is_regular_file(path, ec) && !formats::format_name_of(path).empty();
}

Result<Saves> find_saves(const fs::path& folder, Saved wanted) {
  Saves out;
  std::error_code ec;
  if (!fs::is_directory(folder, ec)) return fail(Code::kNotFound, folder.string(), "there is no such folder");
  size_t seen = 0;
  fs::directory_iterator it(folder, ec), end;
  for (; !ec && it != end; it.increment(ec)) {
    if (++seen > kMostEntries) return fail(Code::kNoRoom, folder.string(), "holds too many entries to look through");
    const std::string name = it->path().filename().string();
    if (name.starts_with('.')) continue;
    if (store::ImageReader::looks_like_image(it->path())) {
      auto manifest = store::read_manifest(it->path());
      // One that cannot be read has no time: the oldest, and told where no other is complete.
      if (wanted != Saved::kCheckpoint) out.images.push_back({name, manifest ? manifest->created : ""});
    } else if (auto step = schedule::step_of(name);
               step && wanted != Saved::kImage && may_be_checkpoint(it->path(), name)) {
      out.checkpoints.push_back({name, schedule::order_of(*step)});
    }
  }
  if (ec) return sys_error(ec.value(), folder.string(), "cannot be listed");
  return out;
}

/// What the trackers of a folder name: the newest, where there are several.
struct Tracker {
  std::string file;
  schedule::Committed says;
};
std::optional<Tracker> read_trackers(const fs::path& folder) {
  std::optional<Tracker> out;
  for (const char* name : schedule::tracker_names()) {
    auto text = io::read_file(folder / name, 4096);
    auto says = text ? schedule::parse_tracker(*text) : std::nullopt;
    if (says && (!out || says->step.value_or(0) > out->says.step.value_or(0))) out = Tracker{name, *says};
  }
  return out;
}

Result<void> check_checkpoint(const fs::path& path) {
  auto facts = look_at_checkpoint(path);
  if (!facts) return fail(Code::kCorrupt, path.string(), "holds no checkpoint that ckpt knows");
  if (!facts->complete && facts->complete.error().code == Code::kUnsupported) return {};  // as far as anybody can say
  return facts->complete;
}

Result<schedule::Choice> newest_image(const fs::path& folder, const std::vector<Candidate>& images) {
  return schedule::choose_newest(folder.string(), images,
                                 [&](const Candidate& one) { return check_image(folder / one.name); });
}

Result<schedule::Choice> newest_checkpoint(const fs::path& folder, const std::vector<Candidate>& checkpoints) {
  const std::optional<Tracker> tracker = read_trackers(folder);
  if (tracker && !tracker->says.step && check_checkpoint(folder / tracker->says.name))
    return schedule::Choice{tracker->says.name, {}};  // Megatron's "release"
  auto check = [&](const Candidate& one) -> Result<void> {
    if (tracker && tracker->says.step && one.order > schedule::order_of(*tracker->says.step))
      return fail(Code::kMismatch, one.name, fmt::format("is newer than what {} names", tracker->file));
    return check_checkpoint(folder / one.name);
  };
  CKPT_TRY_ASSIGN(schedule::Choice out, schedule::choose_newest(folder.string(), checkpoints, check));
  if (tracker && tracker->says.step && schedule::step_of(out.name) < tracker->says.step)
    out.skipped.push_back(fmt::format("{} names {}", tracker->file, tracker->says.name));
  return out;
}

Error nothing_there(const fs::path& folder, Saved wanted) {
  const char* what = wanted == Saved::kImage ? "no process image"
                     : wanted == Saved::kCheckpoint
                         ? "no checkpoint with a step in its name"
                         : "neither a process image nor a checkpoint with a step in its name";
  return Error(Code::kNotFound, folder.string(), fmt::format("holds {}", what))
      .with_hint("ckpt list shows what is there");
}

Error two_kinds(const fs::path& folder) {
  return Error(Code::kUsage, folder.string(), "holds process images and checkpoints: which is meant?")
      .with_hint("name one of them");
}

Result<std::string> latest(const fs::path& folder, const Saves& saves, Saved wanted, Context& context) {
  if (saves.images.empty() && saves.checkpoints.empty()) return nothing_there(folder, wanted);
  if (!saves.images.empty() && !saves.checkpoints.empty()) return two_kinds(folder);
  CKPT_TRY_ASSIGN(const schedule::Choice choice, saves.images.empty() ? newest_checkpoint(folder, saves.checkpoints)
                                                                      : newest_image(folder, saves.images));
  for (const std::string& why : choice.skipped) context.progress.note("skipped " + (folder / why).string());
  return choice.name;
}

Result<std::string> at_step(const fs::path& folder, const Saves& saves, uint64_t step, Saved wanted) {
  std::vector<std::string> found, steps;
  for (const auto& all : {saves.images, saves.checkpoints}) {
    for (const Candidate& one : all) {
      const auto its = schedule::step_of(one.name);
      if (its == step)
        found.push_back(one.name);
      else if (its)
        steps.push_back(one.name);
    }
  }
  if (found.size() == 1) return found.front();
  std::sort(found.begin(), found.end());
  if (found.size() > 1) {
    return Error(Code::kUsage, folder.string(), fmt::format("has two of step {}, {} and {}", step, found[0], found[1]))
        .with_hint("name one of them");
  }
  if (steps.empty()) return nothing_there(folder, wanted);
  return Error(Code::kNotFound, folder.string(), fmt::format("holds none of step {}", step))
      .with_hint("ckpt list shows what is there");
}

uint64_t size_of(const fs::path& path) {
  std::error_code ec;
  if (!fs::is_directory(path, ec)) {
    const uint64_t size = fs::file_size(path, ec);
    return ec ? 0 : size;
  }
  uint64_t sum = 0;
  for (fs::recursive_directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code gone;
    const uint64_t size = it->is_regular_file(gone) ? it->file_size(gone) : 0;
    if (!gone) sum += size;
  }
  return sum;
}

}  // namespace

Result<void> check_image(const fs::path& path) {
  CKPT_TRY_ASSIGN(const store::Manifest manifest, store::read_manifest(path));
  CKPT_TRY(Parents().check(path, manifest));
  CKPT_TRY_ASSIGN(auto reader, store::ImageReader::open(path));  // every file of it and of its parents, with its size
  return {};
}

std::optional<CheckpointFacts> look_at_checkpoint(const fs::path& path) {
  CheckpointFacts out;
  out.format = formats::format_name_of(path);
  auto catalog = open_data(path);
  if (!catalog && !formats::looks_like_checkpoint(path)) return std::nullopt;
  if (!catalog)
    out.complete = std::move(catalog).error();
  else
    out.format = catalog->format;
  if (catalog && !catalog->damage.empty())
    out.complete = fail(Code::kCorrupt, path.string(), catalog->damage.front().text());
  out.bytes = size_of(path);
  return out;
}

Result<void> Parents::check(const fs::path& image, const store::Manifest& manifest) {
  // Along the chain to the first image that is known, then back: a chain may be longer than the stack is deep.
  std::vector<std::string> asked;
  fs::path dir = image;
  store::Manifest at = manifest;
  Result<void> found;
  while (!at.parent_id.empty()) {
    const fs::path named = (dir / at.parent_path).lexically_normal();
    std::error_code ec;
    const fs::path parent = fs::canonical(named, ec);
    auto next = ec ? Result<store::Manifest>(Error(Code::kNotFound, named.string(), "is not there"))
                   : store::read_manifest(parent);
    if (!next || next->id != at.parent_id) {
      found = fail(Code::kNotFound, "parent " + named.string(),
                   next ? "is another image than it was" : next.error().message);
      break;
    }
    if (auto before = known_.find(parent.string()); before != known_.end()) {
      found = before->second;
      break;
    }
    if (std::find(asked.begin(), asked.end(), parent.string()) != asked.end()) {
      found = fail(Code::kCorrupt, "parent " + named.string(), "is its own ancestor");
      break;
    }
    asked.push_back(parent.string());
    dir = parent;
    at = std::move(*next);
  }
  for (const std::string& parent : asked) known_.emplace(parent, found);
  return found;
}

Result<std::string> resolve_saved(const std::string& text, Saved wanted, Context& context) {
  const std::optional<schedule::At> at = schedule::parse_at(text);
  std::error_code ec;
  if (!at || fs::exists(fs::symlink_status(text, ec))) return context.local(text);
  CKPT_TRY_ASSIGN(const fs::path folder, context.local(at->folder));
  if (store::ImageReader::looks_like_image(folder))
    return fail(Code::kUsage, folder.string(), "is an image itself: there is nothing to choose from");
  CKPT_TRY_ASSIGN(const Saves saves, find_saves(folder, wanted));
  CKPT_TRY_ASSIGN(const std::string name,
                  at->step ? at_step(folder, saves, *at->step, wanted) : latest(folder, saves, wanted, context));
  const std::string out = (folder / name).string();
  context.progress.note(text + " is " + out);
  return out;
}

}  // namespace ckpt::cli
