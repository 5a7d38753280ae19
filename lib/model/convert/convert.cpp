#include "lib/model/convert/convert.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <algorithm>

#include "lib/model/convert/compare.h"
#include "lib/model/convert/siblings.h"
#include "lib/model/convert/workspace.h"
#include "formats/format.h"
#include "lib/model/verify/verify.h"
#include "lib/base/clock.h"
#include "lib/base/staged_dir.h"
#include "lib/base/text.h"
#include "lib/base/trace.h"
#include "lib/base/worker_pool.h"
#include "lib/tensor/write_files.h"

namespace ckpt::model {

namespace fs = std::filesystem;

namespace {

/// Whether `path` is `folder` or lies below it; both canonical.
bool is_within(const fs::path& path, const fs::path& folder) {
  auto a = path.begin();
  for (auto b = folder.begin(); b != folder.end(); ++a, ++b) {
    if (b->empty()) continue;  // a trailing slash
    if (a == path.end() || *a != *b) return false;
  }
  return true;
}

Result<void> check_places(const fs::path& source, const fs::path& destination) {
  std::error_code ec;
  const fs::path from = fs::canonical(source, ec);
  if (ec) return sys_error(ec.value(), source.string(), "cannot resolve");
  const fs::path to = fs::weakly_canonical(fs::absolute(destination, ec), ec);
  if (ec) return sys_error(ec.value(), destination.string(), "cannot resolve");
  if (is_within(to, from)) return fail(Code::kUsage, destination.string(), "lies inside the source");
  if (is_within(from, to)) return fail(Code::kUsage, destination.string(), "holds the source");
  fs::path above = to.parent_path();  // missing ones are made, as for process images
  while (above != above.parent_path() && !fs::exists(above, ec)) above = above.parent_path();
  if (!fs::is_directory(above, ec))
    return fail(Code::kUsage, above.string(), "is not a folder: nothing can be written below it");
  return {};
}

/// `name`: the destination as the user called it.
Result<void> check_room(const fs::path& folder, const fs::path& name, uint64_t bytes) {
  struct statvfs st{};
  if (::statvfs(folder.c_str(), &st) != 0) return sys_error(name.string(), "cannot tell the free space");
  const uint64_t room = static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
  if (room >= bytes) return {};
  return fail(Code::kNoRoom, name.string(),
              fmt::format("{} are free there, the checkpoint needs {}", human_bytes(room), human_bytes(bytes)));
}

Result<uint64_t> bytes_in(const fs::path& folder) {
  uint64_t total = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_regular_file(ec)) total += it->file_size(ec);
  }
  if (ec) return sys_error(ec.value(), folder.string(), "cannot list");
  return total;
}

Result<tensor::Catalog> open_source(const ConvertRequest& request) {
  formats::ReadOptions options;
  options.from = request.from;
  options.tolerate_damage = true;  // what is left out may be damaged: check_soundness decides
  return formats::open_checkpoint(request.source, options);
}

/// What a conversion takes at the least: the program, and the buffers of each of its workers.
constexpr uint64_t kProgramMemory = 16 << 20, kWorkerMemory = 4 << 20;

Result<unsigned> workers_within(uint64_t max_memory, unsigned asked) {
  if (max_memory < kProgramMemory + kWorkerMemory) {
    return fail(Code::kUsage, "--max-memory",
                fmt::format("{} is too little: the least is {}", human_bytes(max_memory),
                            human_bytes(kProgramMemory + kWorkerMemory)));
  }
  return static_cast<unsigned>(
      std::min<uint64_t>(WorkerPool::threads_for(asked), (max_memory - kProgramMemory) / kWorkerMemory));
}

/// Each holds parts of files in memory that are not full yet.
constexpr unsigned kWorkersElsewhere = 4;

constexpr size_t kShownNames = 8;  ///< in a note

/// One conversion from plan to place.
class Conversion {
 public:
  Conversion(const ConvertRequest& request, ProgressSink& progress, const Cancel& cancel)
      : request_(request), cancel_(cancel), control_{request.workers, request.durable, request.write.max_memory,
                                                     progress,        cancel,          request.allow_damage} {}

  Result<ConvertReport> run() {
    Stopwatch watch;
    CKPT_TRY_ASSIGN(control_.workers, workers_within(control_.max_memory, request_.workers));
    if (request_.elsewhere) control_.workers = std::min(control_.workers, kWorkersElsewhere);
    CKPT_TRY_ASSIGN(source_, open_source(request_));
    if (!request_.elsewhere) CKPT_TRY(check_places(request_.source, request_.destination));
    CKPT_TRY_ASSIGN(selected_, select(source_, request_.select));
    CKPT_TRY(check_soundness());
    CKPT_TRY(plan());
    CKPT_TRY(plan_siblings());
    describe();
    end_phase("plan");
    if (request_.elsewhere)
      CKPT_TRY(write_elsewhere());
    else if (request_.dry_run)
      CKPT_TRY(rehearse());
    else if (request_.resume || request_.part.count > 1) CKPT_TRY(write_part());
    else CKPT_TRY(write_all());
    report_.duration_us = watch.elapsed_us();
    return std::move(report_);
  }

 private:
  /// The same questions that `ckpt verify` asks, as far as they are about what is to be written.
  Result<void> check_soundness() {
    VerifyOptions options;
    options.before_conversion = options.trust_pickles = true;
    options.hashes = request_.verify;
    options.objects = selected_.selection.common;
    options.wanted = [this](std::string_view key) { return is_wanted(request_.select, std::string(key)); };
    std::optional<Manifest> manifest;
    if (request_.verify) {
      auto found = read_manifest(default_manifest_path(source_.root));
      if (!found && found.error().code != Code::kNotFound) return std::move(found).error();
      if (found) manifest = std::move(*found);
    }
    options.manifest = manifest ? &*manifest : nullptr;
    CKPT_TRY_ASSIGN(const VerifyReport report,
                    model::verify(source_, options, request_.verify ? control_.progress : null_progress(), cancel_));
    CKPT_TRY(check_pickles(report));
    auto damaged = [](const tensor::Finding& finding) { return !finding.warning; };
    if (std::none_of(report.findings.begin(), report.findings.end(), damaged)) return {};
    if (!request_.allow_damage) {
      return fail(
          tensor::damage_error(source_, report.findings)
              .with_hint("ckpt verify lists all that is wrong; --exclude leaves a key out, --allow-damage goes on"));
    }
    note_damage(report.findings);
    return {};
  }

  void note_damage(const std::vector<tensor::Finding>& findings) {
    for (const tensor::Finding& finding : findings) {
      if (!finding.warning) report_.notes.push_back("damaged: " + finding.text());
    }
  }

  /// What is written is loaded by others: they would run what is in it.
  Result<void> check_pickles(const VerifyReport& report) {
    std::vector<tensor::Finding> dangerous;
    size_t unknown = 0;
    for (const auto& [name, import] : report.imports) {
      if (import.classification.verdict == pickle::Verdict::kSafe) continue;
      tensor::Finding finding{import.key, import.file, import.offset, import_text(name, import.classification)};
      if (import.classification.verdict == pickle::Verdict::kDangerous && !request_.trust_pickles)
        dangerous.push_back(std::move(finding));
      else if (++unknown <= kShownNames) report_.notes.push_back(finding.text());
    }
    if (unknown > kShownNames)
      report_.notes.push_back(fmt::format("{} more names in pickles are not known: ckpt verify --globals lists them",
                                          unknown - kShownNames));
    if (dangerous.empty()) return {};
    return fail(tensor::damage_error(source_, dangerous)
                    .with_hint("--tensors-only leaves the pickles out, --trust-pickles passes them on"));
  }

  Result<void> plan_siblings() {
    report_.siblings = find_siblings(source_);
    if (request_.copy_siblings && kind_ == StagedDir::Kind::kFile)
      return fail(Code::kUsage, request_.destination.string(), "--copy-siblings wants a folder to be written");
    if (request_.copy_siblings) report_.siblings = copy_siblings(source_, report_.siblings, *layout_);
    if (report_.siblings.empty()) return {};
    const auto shown = std::min(report_.siblings.size(), kShownNames);
    report_.notes.push_back(fmt::format(
        "not copied, though beside the checkpoint: {}{}",
        fmt::join(report_.siblings.begin(), report_.siblings.begin() + static_cast<ptrdiff_t>(shown), ", "),
        shown < report_.siblings.size() ? fmt::format(" and {} more", report_.siblings.size() - shown) : ""));
    return {};
  }

  Result<void> check_grid_rules() const {
    std::vector<std::string> unused;
    for (const tensor::GridRule& rule : request_.write.grid.rules) {
      auto fits = [&](const tensor::Target& target) { return glob_match(rule.glob, target.key); };
      if (rule.glob != "**" &&
          std::none_of(selected_.selection.tensors.begin(), selected_.selection.tensors.end(), fits))
        unused.push_back("shard-grid: " + rule.glob);
    }
    if (unused.empty()) return {};
    return formats::with_causes(Error(Code::kUsage, request_.source.string(), "has no key that these fit"),
                                std::move(unused));
  }

  Result<void> plan() {
    CKPT_TRY(check_grid_rules());
    const formats::Writer* writer = formats::find_writer(request_.to);
    if (writer == nullptr) return fail(Code::kUsage, request_.to, "is no format that ckpt writes");
    formats::WriteOptions options = request_.write;
    const std::string name = request_.destination.filename().string();
    options.one_file = std::any_of(writer->suffixes.begin(), writer->suffixes.end(),
                                   [&](std::string_view suffix) { return name.ends_with(suffix); });
    if (options.one_file) kind_ = StagedDir::Kind::kFile;
    const bool pieces = options.grid.shard_size > 0 || !options.grid.rules.empty(),
               spread = options.files > 0 || options.file_size > 0;
    if (pieces && !writer->has_pieces) return fail(Code::kUsage, request_.to, "does not store tensors in pieces");
    if (spread && (!writer->has_files || options.one_file))
      return fail(Code::kUsage, request_.destination.string(), "becomes files whose number cannot be chosen");
    if (!options.mcore.empty() && request_.to != "torch_dist")
      return fail(Code::kUsage, "--mcore", "is for --to torch_dist");
    CKPT_TRY_ASSIGN(layout_, writer->plan(selected_.selection, options));
    if (std::string lost = formats::lost_metadata(source_, writer->name); !lost.empty())
      layout_->notes.push_back(std::move(lost));
    return {};
  }

  void describe() {
    report_.source_format = source_.format;
    for (const tensor::OutputFile& file : layout_->files) {
      if (!file.generate) report_.files.emplace_back(file.name, file.size);
      report_.total_bytes += file.size;
    }
    report_.tensors = selected_.selection.tensors.size();
    report_.objects = selected_.selection.objects.size();
    report_.shards = layout_->shards;
    report_.excluded = selected_.excluded;
    report_.skipped = selected_.skipped;
    report_.payload_bytes = layout_->payload_bytes;
    for (const auto* notes : {&source_.warnings, &selected_.selection.notes, &layout_->notes}) {
      if (notes == &source_.warnings && layout_->as_source) continue;
      report_.notes.insert(report_.notes.end(), notes->begin(), notes->end());
    }
  }

  /// Creating the staging folder says whether the destination may be used: a dry run gives the same answers.
  Result<void> rehearse() {
    CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(request_.destination, request_.force, kind_));
    return check_room(staged.path(), request_.destination, report_.total_bytes);
  }

  void end_phase(const char* name) { report_.phases_us.emplace_back(name, trace::phase(watch_, name)); }

  Result<void> write_generated(io::OutputFolder& out) {
    for (const tensor::OutputFile& file : layout_->files) {
      if (file.generate) CKPT_TRY(write_generated_file(file, out, control_));
    }
    end_phase("metadata");
    return cancel_.check();
  }

  Result<void> write_data(io::OutputFolder& out, std::span<const size_t> which) {
    CKPT_TRY_ASSIGN(const auto findings, write_data_files(*layout_, selected_.selection, out, which, control_));
    end_phase("copy");
    note_damage(findings);
    for (const tensor::Finding& finding : findings) {
      if (finding.warning) report_.notes.push_back(finding.text());
    }
    return {};
  }

  Result<void> verify(const fs::path& folder) {
    if (!request_.verify) return {};
    const fs::path written = kind_ == StagedDir::Kind::kFile ? folder / layout_->last_file : folder;
    CKPT_TRY(compare_with_source(written, selected_.selection, control_.workers, control_.progress, cancel_));
    report_.verified = true;
    end_phase("verify");
    return {};
  }

  Result<void> write_all() {
    CKPT_TRY_ASSIGN(StagedDir staged, StagedDir::create(request_.destination, request_.force, kind_));
    CKPT_TRY(check_room(staged.path(), request_.destination, report_.total_bytes));
    CKPT_TRY(staged.share());
    io::LocalOutput out(staged.path(), request_.durable);
    CKPT_TRY(write_data(out, files_of_part(*layout_, {})));
    CKPT_TRY(write_generated(out));
    CKPT_TRY(verify(staged.path()));
    CKPT_TRY_ASSIGN(report_.total_bytes, bytes_in(staged.path()));
    CKPT_TRY(staged.commit(layout_->last_file, request_.durable));
    end_phase("commit");
    return {};
  }

  /// A dry run opens the destination, too: it refuses what the real one would.
  Result<void> write_elsewhere() {
    if (request_.part.count > 1)
      return fail(Code::kUnsupported, request_.destination.string(),
                  "--part is for folders that all parts can write to: at a URL one process makes the whole");
    const std::string plan = request_.resume ? fingerprint(*layout_, selected_.selection) : "";
    CKPT_TRY_ASSIGN(const auto out, request_.elsewhere(kind_ == StagedDir::Kind::kFile, plan));
    if (request_.dry_run) return {};
    std::vector<size_t> missing;
    for (const size_t index : files_of_part(*layout_, {})) {
      CKPT_TRY_ASSIGN(const bool there, out->take_up(layout_->files[index].name, layout_->files[index].size));
      if (!there) missing.push_back(index);
      report_.kept_files += there ? 1 : 0;
    }
    CKPT_TRY(write_data(*out, missing));
    CKPT_TRY(write_generated(*out));
    report_.total_bytes = out->bytes();
    CKPT_TRY(out->commit(layout_->last_file));
    end_phase("commit");
    if (!request_.verify) return {};
    auto same = [&]() -> Result<void> {
      CKPT_TRY_ASSIGN(const fs::path written, out->read_back());
      return compare_with_source(written, selected_.selection, control_.workers, control_.progress, cancel_);
    }();
    if (!same) return out->withdraw(std::move(same).error());
    report_.verified = true;
    end_phase("verify");
    return {};
  }

  /// One of many processes, or one that goes on where another was killed. The last one finishes.
  Result<void> write_part() {
    auto is_there = [&] {
      return report_.was_there = !request_.force && is_finished(*layout_, request_.destination, kind_);
    };
    if (is_there()) return {};
    CKPT_TRY_ASSIGN(Workspace workspace,
                    Workspace::open(request_.destination, fingerprint(*layout_, selected_.selection), request_.part));
    if (is_there()) {  // finished between the two
      workspace.discard();
      return {};
    }
    const std::vector<size_t> own = files_of_part(*layout_, request_.part);
    std::vector<size_t> missing;
    uint64_t bytes = 0;
    for (size_t index : own) {
      if (workspace.has(layout_->files[index])) continue;
      missing.push_back(index);
      bytes += layout_->files[index].size;
    }
    CKPT_TRY(check_room(workspace.files(), request_.destination, bytes));
    report_.kept_files = own.size() - missing.size();
    io::LocalOutput out(workspace.files(), request_.durable);
    CKPT_TRY(write_data(out, missing));
    for (const tensor::OutputFile& file : layout_->files) {
      if (file.generate || workspace.has(file)) continue;
      report_.finished = false;
      return {};
    }
    CKPT_TRY_ASSIGN(const bool mine, workspace.may_finish());
    if (!mine) return {};
    CKPT_TRY(write_generated(out));
    CKPT_TRY(verify(workspace.files()));
    CKPT_TRY_ASSIGN(report_.total_bytes, bytes_in(workspace.files()));
    CKPT_TRY(workspace.finish(*layout_, request_.destination, request_.force, kind_));
    end_phase("commit");
    return {};
  }

  Stopwatch watch_;
  const ConvertRequest& request_;
  const Cancel& cancel_;
  tensor::WriteControl control_;
  tensor::Catalog source_;
  Selected selected_;
  std::unique_ptr<tensor::Layout> layout_;
  StagedDir::Kind kind_ = StagedDir::Kind::kFolder;
  ConvertReport report_;
};

}  // namespace

Result<ConvertReport> convert(const ConvertRequest& request, ProgressSink& progress, const Cancel& cancel) {
  return Conversion(request, progress, cancel).run();
}

}  // namespace ckpt::model
