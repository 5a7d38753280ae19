// list: the process images and the checkpoints below a folder, by what their metadata says.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/command.h"
#include "cli/gpu_flags.h"
#include "cli/gpu_view.h"
#include "cli/job_view.h"
#include "cli/saves.h"
#include "cli/store_flags.h"
#include "formats/format.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/schedule/saves.h"
#include "lib/store/find_images.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

struct Entry {
  fs::path path;
  Result<store::Manifest> manifest;
  Result<void> chain;  ///< its parents, up to the first

  uint64_t bytes() const {
    uint64_t sum = 0;
    if (manifest) {
      for (const store::StoredFile& file : manifest->files) sum += file.size;
    }
    return sum;
  }
};

Json entry_json(const Entry& entry) {
  if (!entry.manifest) return {{"path", entry.path.string()}, {"ok", false}, {"error", entry.manifest.error().text()}};
  const store::Manifest& m = *entry.manifest;
  Json out = {{"path", entry.path.string()}, {"ok", entry.chain.has_value()},
          {"id", m.id},                  {"image_kind", m.kind},
          {"created", m.created},        {"pid", m.tree.root().pid},
          {"arguments", m.tree.root().arguments}, {"parent_path", m.parent_path},
          {"parent_id", m.parent_id},    {"bytes", entry.bytes()}};
  if (!entry.chain) out["error"] = entry.chain.error().text();
  return out;
}

std::vector<std::string> entry_row(const Entry& entry) {
  if (!entry.manifest) return {entry.path.string(), "damaged", "", "", "", "", entry.manifest.error().message};
  const store::Manifest& m = *entry.manifest;
  std::string command;
  for (const std::string& word : m.tree.root().arguments) command += (command.empty() ? "" : " ") + word;
  if (!entry.chain) command = entry.chain.error().text();
  return {entry.path.string(),
          entry.chain ? m.kind : "no parent",
          m.created,
          std::to_string(m.tree.root().pid),
          human_bytes(entry.bytes()),
          m.parent_path.empty() ? "-" : m.parent_path,
          command};
}

/// Files that are looked into: those of a large tree are not all opened.
bool is_checkpoint_file(const fs::path& path) {
  static constexpr std::array kExtensions = {".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".gguf", ".npz"};
  const std::string extension = path.extension().string();
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

/// Directly below a folder: it is one of many saves then, not a save.
bool holds_steps(const fs::path& dir) {
  std::error_code ec;
  fs::directory_iterator it(dir, ec), end;
  for (int seen = 0; !ec && it != end && seen < 10'000; it.increment(ec), ++seen) {
    std::error_code gone;
    if (!schedule::is_step_name(it->path().filename().string())) continue;
    if (it->is_directory(gone) || is_checkpoint_file(it->path())) return true;
  }
  return false;
}

struct FoundCheckpoint {
  fs::path path;
  CheckpointFacts facts;

  /// Nothing: nobody here can say.
  std::optional<bool> complete() const {
    if (!facts.complete && facts.complete.error().code == Code::kUnsupported) return std::nullopt;
    return facts.complete.has_value();
  }
};

/// Below `top`, by path; links are not followed, checkpoints, images and other file systems not entered.
class CheckpointSearch {
 public:
  CheckpointSearch(const fs::path& top, const Cancel& cancel) : cancel_(cancel) {
    struct stat st {};
    if (::stat(top.c_str(), &st) == 0) device_ = st.st_dev;
    pending_.push_back(top);
  }

  Result<std::vector<FoundCheckpoint>> run() {
    while (!pending_.empty()) {
      CKPT_TRY(cancel_.check());
      const fs::path dir = std::move(pending_.back());
      pending_.pop_back();
      if (store::ImageReader::looks_like_image(dir)) continue;
      const bool recognised = !formats::format_name_of(dir).empty();
      const bool is_step = schedule::is_step_name(dir.filename().string());
      if (recognised || ((is_step || formats::looks_like_checkpoint(dir)) && !holds_steps(dir))) {
        if (auto facts = look_at_checkpoint(dir)) {
          out_.push_back({dir, std::move(*facts)});
          continue;
        }
      }
      look_into(dir);
    }
    std::sort(out_.begin(), out_.end(),
              [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.path < b.path; });
    return std::move(out_);
  }

 private:
  void look_into(const fs::path& dir) {
    std::error_code ec;
    for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
      struct stat st {};
      if (::lstat(it->path().c_str(), &st) != 0 || st.st_dev != device_) continue;
      const bool hidden = it->path().filename().string().starts_with('.');
      if (S_ISDIR(st.st_mode) && !hidden) pending_.push_back(it->path());
      if (S_ISREG(st.st_mode) && !hidden && is_checkpoint_file(it->path()) &&
          !formats::format_name_of(it->path()).empty()) {
        if (auto facts = look_at_checkpoint(it->path())) out_.push_back({it->path(), std::move(*facts)});
      }
    }
  }

  const Cancel& cancel_;
  dev_t device_ = 0;
  std::vector<fs::path> pending_;
  std::vector<FoundCheckpoint> out_;
};

Json checkpoint_json(const FoundCheckpoint& found) {
  Json out = {{"path", found.path.string()}, {"format", found.facts.format}};
  const std::optional<bool> complete = found.complete();
  out["complete"] = complete ? Json(*complete) : Json();
  const auto step = schedule::step_of(found.path.filename().string());
  out["step"] = step ? Json(*step) : Json();
  out["bytes"] = found.facts.bytes;
  if (!found.facts.complete) out["error"] = found.facts.complete.error().message;
  return out;
}

std::vector<std::string> checkpoint_row(const FoundCheckpoint& found) {
  const std::optional<bool> complete = found.complete();
  const auto step = schedule::step_of(found.path.filename().string());
  return {found.path.string(),
          found.facts.format.empty() ? "not read" : found.facts.format,
          !complete   ? "unknown"
          : *complete ? "complete"
                      : "incomplete",
          step ? std::to_string(*step) : "-",
          human_bytes(found.facts.bytes),
          found.facts.complete ? "" : found.facts.complete.error().message};
}

/// A folder with parts of a job.
struct FoundJob {
  fs::path path;
  Result<store::Job> job;
  std::vector<PartView> parts;

  std::string state() const {
    auto any = [&](PartState state) {
      return std::any_of(parts.begin(), parts.end(), [&](const PartView& part) { return part.state == state; });
    };
    if (!job) return job.error().code == Code::kNotFound ? "abandoned" : "damaged";
    return any(PartState::kDamaged) ? "damaged" : any(PartState::kElsewhere) ? "parts elsewhere" : "whole";
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    if (job) {
      for (const store::JobMember& member : job->members) sum += member.bytes;
    }
    return sum;
  }
};

std::vector<FoundJob> find_jobs(const std::vector<Entry>& images) {
  std::vector<FoundJob> out;
  std::set<fs::path> folders;
  for (const Entry& entry : images) {
    const fs::path folder = entry.path.parent_path();
    if (!entry.manifest || entry.manifest->job.id.empty() || !folders.insert(folder).second) continue;
    FoundJob& found = out.emplace_back(FoundJob{folder, store::read_job(folder), {}});
    if (found.job) found.parts = look_at_parts(folder, *found.job);
  }
  return out;
}

Json job_json(const FoundJob& found) {
  Json out = {{"path", found.path.string()}, {"state", found.state()}};
  if (found.job) {
    out.update({{"id", found.job->id},
                {"image_kind", found.job->kind},
                {"created", found.job->created},
                {"ranks", found.job->members.size()},
                {"bytes", found.bytes()}});
  } else {
    out["error"] = found.job.error().text();
  }
  return out;
}

std::vector<std::string> job_row(const FoundJob& found) {
  if (!found.job) return {found.path.string(), "", "", "", "", found.state()};
  return {found.path.string(),        found.job->kind, found.job->created, std::to_string(found.job->members.size()),
          human_bytes(found.bytes()), found.state()};
}

void print_tables(Console& out, const fs::path& top, const std::vector<Entry>& images,
                  const std::vector<FoundJob>& jobs, const std::vector<FoundCheckpoint>& checkpoints) {
  if (images.empty() && checkpoints.empty())
    return out.info("no process image and no checkpoint below " + escape_for_terminal(top.string()));
  std::vector<std::vector<std::string>> rows;
  for (const Entry& entry : images) rows.push_back(entry_row(entry));
  if (!rows.empty()) out.table({"IMAGE", "KIND", "CREATED", "PID", "SIZE", "PARENT", "COMMAND"}, rows, {3, 4});
  if (!jobs.empty()) out.data("\n");
  rows.clear();
  for (const FoundJob& found : jobs) rows.push_back(job_row(found));
  if (!rows.empty()) out.table({"JOB", "KIND", "CREATED", "RANKS", "SIZE", "STATE"}, rows, {3, 4});
  if (!images.empty() && !checkpoints.empty()) out.data("\n");
  rows.clear();
  for (const FoundCheckpoint& found : checkpoints) rows.push_back(checkpoint_row(found));
  if (!rows.empty()) out.table({"CHECKPOINT", "FORMAT", "STATE", "STEP", "SIZE", "WHY"}, rows, {3, 4});
}

Result<void> list(Context& context, const fs::path& top) {
  CKPT_TRY_ASSIGN(std::vector<fs::path> found, store::find_images(top, context.progress, context.cancel));
  std::vector<Entry> entries;
  Parents parents;
  for (fs::path& path : found) {
    auto manifest = store::read_manifest(path);
    Result<void> chain = manifest ? parents.check(path, *manifest) : Result<void>();
    entries.push_back({std::move(path), std::move(manifest), std::move(chain)});
  }
  CKPT_TRY_ASSIGN(const std::vector<FoundCheckpoint> models, CheckpointSearch(top, context.cancel).run());
  const std::vector<FoundJob> jobs = find_jobs(entries);
  if (!context.out.json()) {
    print_tables(context.out, top, entries, jobs, models);
    return {};
  }
  Json images = Json::array(), checkpoints = Json::array(), of_jobs = Json::array();
  for (const FoundJob& found : jobs) of_jobs.push_back(job_json(found));
  for (const Entry& entry : entries) images.push_back(entry_json(entry));
  for (const FoundCheckpoint& one : models) checkpoints.push_back(checkpoint_json(one));
  Json doc = {{"schema", "ckpt.list/1"},
              {"path", top.string()},
              {"images", images},
              {"jobs", of_jobs},
              {"checkpoints", checkpoints}};
  context.out.data(lay_out_json(doc.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return {};
}

Result<void> list_gpus(Context& context) {
  CKPT_TRY_ASSIGN(const engine::GpuOptions options, gpu_options({}));
  CKPT_TRY_ASSIGN(const std::vector<engine::GpuProcess> processes,
                  engine::look_at_gpu_processes(engine::processes_that_may_use_gpus(), options));
  if (context.out.json()) {
    const Json doc = {{"schema", "ckpt.list-gpu/1"}, {"processes", Json::parse(gpu_processes_json(processes))}};
    context.out.data(lay_out_json(doc.dump(-1, ' ', true, Json::error_handler_t::replace)));
  } else if (processes.empty()) {
    context.out.info("no process with GPU state that this user may look into");
  } else {
    print_gpu_table(context.out, processes);
  }
  return {};
}

struct ListFlags {
  std::string top = ".";
  bool gpu = false;
  StoreFlags store;
};

}  // namespace

Command::Run add_list(VerbOptions& app) {
  auto flags = std::make_shared<ListFlags>();
  app.add_option("DIR", flags->top, "Folder to look below").shows_default().type_name("PATH|URL");
  app.add_flag("--gpu", flags->gpu,
               "The processes of this machine that have GPU state, suspended ones among them, in place of images");
  add_store_flags(app, flags->store, false);
  return [flags](Context& context) -> Result<void> {
    if (!flags->store.place.empty()) {
      if (flags->top == "." && !flags->gpu) return list_store(context, flags->store);
      return fail(Code::kUsage, "--store", "lists all that is in the store: no folder and no --gpu go with it");
    }
    if (flags->gpu) return list_gpus(context);
    CKPT_TRY_ASSIGN(const std::string folder, context.local(flags->top));
    return list(context, folder);
  };
}

}  // namespace ckpt::cli
