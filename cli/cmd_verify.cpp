// `ckpt verify PATH`: is every byte there that should be, and is it right.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/command.h"
#include "cli/job_view.h"
#include "cli/model_view.h"
#include "cli/parity_job.h"
#include "cli/plural.h"
#include "cli/store_flags.h"
#include "cli/verify_image.h"
#include "cli/verify_report.h"
#include "lib/base/clock.h"
#include "lib/base/text.h"
#include "lib/model/verify/verify.h"
#include "lib/remote/mounted.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace fs = std::filesystem;

namespace {

struct VerifyCommand {
  std::string path, from = "auto";
  std::string against, manifest, write_manifest, hash = "xxh3-128";
  std::string part, sample;
  uint64_t seed = 0, max_memory = 0;  ///< 0: not said
  bool strict = false, optimizer = false, skip_unreadable = false, tensor_hashes = false, globals = false,
       rehearse = false, trust = false, parity = false;
  bool repair = false;
  StoreFlags store;
  std::vector<std::string> more;  ///< with --parity: the other ranks' folders; with --store: more names

  bool for_models_only() const {
    return strict || optimizer || skip_unreadable || from != "auto" || tensor_hashes || globals || !against.empty() ||
           !manifest.empty() || !write_manifest.empty() || !part.empty() || !sample.empty();
  }
};

std::optional<uint64_t> whole_number(std::string_view text) {
  uint64_t out = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

/// `--part 2/8`, `--sample 5%` or `--sample 1000`.
Result<model::Selection> selection(const VerifyCommand& command) {
  model::Selection out;
  out.seed = command.seed;
  if (!command.part.empty()) {
    const size_t slash = command.part.find('/');
    auto part = whole_number(std::string_view(command.part).substr(0, slash));
    std::optional<uint64_t> parts;
    if (slash != std::string::npos) parts = whole_number(std::string_view(command.part).substr(slash + 1));
    if (!part || !parts || *part < 1 || *part > *parts)
      return fail(Code::kUsage, command.part, "--part wants N/T with N from 1 to T");
    out.part = *part, out.parts = *parts;
  }
  if (command.sample.empty()) return out;
  if (command.sample.back() == '%') {
    double percent = 0;
    const char* end = command.sample.data() + command.sample.size() - 1;
    auto [stop, error] = std::from_chars(command.sample.data(), end, percent);
    if (error == std::errc() && stop == end && percent > 0 && percent <= 100) out.percent = percent;
  } else {
    out.count = whole_number(command.sample);
  }
  if (!out.percent && (!out.count || *out.count == 0))
    return fail(Code::kUsage, command.sample, "--sample wants a share such as 5%, or a number of pieces");
  return out;
}

/// Hashes are written of what is there: a checkpoint that is not sound gets no manifest.
Result<void> make_manifest(Context& context, const VerifyCommand& command, const tensor::Catalog& catalog) {
  const fs::path path = command.write_manifest == "default" ? model::default_manifest_path(catalog.root)
                                                            : fs::path(command.write_manifest);
  model::ManifestOptions options;
  options.hash = *model::hash_from_name(command.hash);
  options.tensors = command.tensor_hashes;
  CKPT_TRY_ASSIGN(model::Manifest manifest,
                  model::make_manifest(catalog, path, options, context.progress, context.cancel));
  CKPT_TRY(model::write_manifest(manifest, path));
  context.out.info(fmt::format("{}: {} of {}{}", escape_for_terminal(path.string()), command.hash,
                               counted(manifest.files.size(), "file"),
                               options.tensors ? " and " + counted(manifest.tensors.size(), "tensor") : ""));
  return {};
}

/// The manifest to compare with: the one that is named, or the checkpoint's own. Nothing: there is none.
Result<std::optional<model::Manifest>> find_manifest(const VerifyCommand& command, const fs::path& root) {
  if (!command.write_manifest.empty()) return std::optional<model::Manifest>();
  const bool named = !command.manifest.empty();
  auto manifest = model::read_manifest(named && command.manifest != "default" ? fs::path(command.manifest)
                                                                              : model::default_manifest_path(root));
  if (manifest) {
    if (command.tensor_hashes && manifest->tensors.empty())
      return fail(Code::kUsage, manifest->name,
                  "has no hashes of tensors: --write-manifest --tensor-hashes makes them");
    return std::optional(std::move(*manifest));
  }
  if (!named && manifest.error().code == Code::kNotFound) {
    if (command.tensor_hashes)
      return fail(Code::kUsage, command.path, "--tensor-hashes wants a manifest to compare with, or to be written");
    return std::optional<model::Manifest>();
  }
  return std::move(manifest).error();
}

Result<void> conclude(Context& context, const VerifyCommand& command, const VerifyOutcome& outcome) {
  const auto& findings = outcome.report.findings;
  const auto damage = std::count_if(findings.begin(), findings.end(), [](const auto& f) { return !f.warning; });
  if (context.out.json())
    print_verify_json(context.out, outcome, damage == 0 && (outcome.report.unreadable == 0 || command.skip_unreadable));
  else print_verify_findings(context.out, outcome, command.globals);
  const uint64_t unreadable = command.skip_unreadable ? 0 : outcome.report.unreadable;
  const bool sound =
      std::none_of(findings.begin(), findings.end(), [](const auto& f) { return !f.warning && !f.difference; });
  if (damage != 0) {
    return fail(sound ? Code::kMismatch : Code::kCorrupt, command.path,
                (sound ? "different: " : "damaged: ") + counted(damage, "finding"));
  }
  if (unreadable != 0) {
    return Error(Code::kUnsupported, command.path,
                 fmt::format("{} entr{} not checked: nobody can say that it is sound", unreadable,
                             unreadable == 1 ? "y was" : "ies were"))
        .with_hint("--skip-unreadable leaves out what cannot be read");
  }
  context.out.info(verify_summary(outcome));
  return {};
}

/// What cannot be opened as a checkpoint: damaged, or a file whose pickles can be judged all the same.
Result<void> verify_unopened(Context& context, const VerifyCommand& command, const Error& error,
                             VerifyOutcome outcome) {
  std::error_code ec;
  const bool judged = answers_no(error.code) || error.code == Code::kUnsupported;
  auto scanned =
      judged && fs::is_regular_file(command.path, ec) ? model::scan_file(command.path, command.strict) : std::nullopt;
  if (!scanned && !answers_no(error.code)) return error;
  if (scanned) {
    outcome.report = std::move(*scanned);
    outcome.format = "pickle";
  }
  if (answers_no(error.code))
    outcome.report.findings.push_back({"", error.subject, std::nullopt, error.message, false});
  for (const std::string& cause : error.causes) outcome.report.findings.push_back({"", "", std::nullopt, cause, false});
  return conclude(context, command, outcome);
}

Result<void> run_verify_store(Context& context, const VerifyCommand& command) {
  VerifyCommand others = command;
  others.sample.clear();
  if (others.for_models_only() || command.rehearse || command.trust || command.parity)
    return fail(Code::kUsage, "--store", "only --sample, --seed and --repair go with it");
  if (command.max_memory != 0 || command.hash != VerifyCommand().hash)
    return fail(Code::kUsage, "--store", "neither --max-memory nor --hash goes with it");
  if (command.seed != 0 && command.sample.empty()) return fail(Code::kUsage, "--seed", "goes with --sample");
  CKPT_TRY_ASSIGN(const model::Selection chosen, selection(command));
  if (chosen.count) return fail(Code::kUsage, command.sample, "--sample of a store wants a share, such as 5%");
  StoreVerification verification;
  if (!command.path.empty()) verification.names.push_back(command.path);
  verification.names.insert(verification.names.end(), command.more.begin(), command.more.end());
  verification.percent = chosen.percent.value_or(100), verification.seed = command.seed;
  verification.repair = command.repair;
  return verify_store(context, command.store, verification);
}

Result<void> run_verify(Context& context, const VerifyCommand& command) {
  if (!command.store.place.empty()) return run_verify_store(context, command);
  if (command.path.empty()) return argument_required("verify", "path");
  if (command.repair) return fail(Code::kUsage, "--repair", "is of a store: --store names it");
  if (command.parity) {
    if (command.for_models_only() || command.rehearse || command.trust || command.max_memory != 0)
      return fail(Code::kUsage, "--parity", "reads every byte of every rank: no other flag goes with it");
    ParityFlags flags;
    flags.folders = {command.path};
    flags.folders.insert(flags.folders.end(), command.more.begin(), command.more.end());
    return verify_parity(context, flags);
  }
  if (!command.more.empty())
    return fail(Code::kUsage, command.more.front(), "is one path too many: only --parity takes several");
  if (command.write_manifest == "default" && remote::with_urls(command.path))
    return fail(Code::kUsage, command.path, "is not written to: name the file, --write-manifest FILE");
  CKPT_TRY_ASSIGN(model::Selection chosen, selection(command));
  if (!command.write_manifest.empty() && (!command.part.empty() || !command.sample.empty())) {
    return fail(Code::kUsage, command.write_manifest,
                "a manifest is written of the whole: --part and --sample do not go with it");
  }
  if (store::ImageReader::looks_like_image(command.path)) {
    if (command.for_models_only())
      return fail(Code::kUsage, command.path, "is a process image: its chunks are all checked, no flag changes that");
    if (command.trust && !command.rehearse)
      return fail(Code::kUsage, command.path,
                  "--trust goes with --rehearse: reading an image makes nothing of what it says");
    return verify_image(context, command.path, {.rehearse = command.rehearse, .trust = command.trust});
  }
  if (store::looks_like_job(command.path)) {
    if (command.for_models_only() || command.rehearse || command.trust)
      return fail(Code::kUsage, command.path,
                  "is the image of a job: its chunks are all checked, no flag changes that");
    return verify_job(context, command.path);
  }
  if (command.rehearse || command.trust)
    return fail(Code::kUsage, command.path, "is no process image: there is nothing to rehearse");
  Stopwatch watch;
  VerifyOutcome outcome;
  outcome.path = command.path;
  auto catalog = open_data(command.path, command.from);
  if (!catalog) return verify_unopened(context, command, catalog.error(), std::move(outcome));
  outcome.format = catalog->format, outcome.tensors = catalog->tensors.size(),
  outcome.objects = catalog->objects.size();
  CKPT_TRY_ASSIGN(std::optional<model::Manifest> manifest, find_manifest(command, catalog->root));
  model::VerifyOptions options;
  options.strict = command.strict;
  options.optimizer = command.optimizer;
  options.skip_unreadable = command.skip_unreadable;
  if (command.max_memory != 0) options.max_memory = command.max_memory;
  options.selection = chosen;
  options.tensor_hashes = command.tensor_hashes && manifest;
  options.manifest = manifest ? &*manifest : nullptr;
  std::optional<tensor::Catalog> other;
  if (!command.against.empty()) {
    CKPT_TRY_ASSIGN(other, open_data(command.against));
    options.against = &*other;
  }
  CKPT_TRY_ASSIGN(outcome.report, model::verify(*catalog, options, context.progress, context.cancel));
  outcome.us = watch.elapsed_us();
  CKPT_TRY(conclude(context, command, outcome));
  return command.write_manifest.empty() ? Result<void>() : make_manifest(context, command, *catalog);
}

}  // namespace

Command::Run add_verify(VerbOptions& app) {
  auto command = std::make_shared<VerifyCommand>();
  app.add_saved("path", Saved::kEither, command->path,
                "A model checkpoint or a process image; with --store a name in it")
      .type_name("PATH|URL");
  app.add_option("DIR", command->more, "With --parity: the folders of the other ranks; with --store: more names");
  add_store_flags(app, command->store, false);
  app.add_flag("--repair", command->repair,
               "Make a store's index anew, save what is sound of damaged packs, set these aside");
  app.add_flag("--parity", command->parity, "Compare what ckpt protect protected, and its parity, with their CRCs");
  add_from(app, command->from);
  app.add_saved("--against", Saved::kCheckpoint, command->against,
                "Compare every tensor, bit for bit, with another checkpoint of whatever format")
      .type_name("PATH|URL");
  app.add_option("--manifest", command->manifest, "Compare hashes with this manifest, not with the checkpoint's own")
      .type_name("FILE");
  app.add_option("--write-manifest", command->write_manifest,
                 "Write the hashes of a sound checkpoint to FILE; default: into its folder")
      .type_name("FILE|default");
  app.add_option("--hash", command->hash, "Of the manifest to write: xxh3-128 or sha256")
      .type_name("HASH")
      .one_of({"xxh3-128", "sha256"})
      .shows_default();
  app.add_flag("--tensor-hashes", command->tensor_hashes,
               "Hashes of the tensors: written beside the files', or compared instead of them");
  app.add_option("--part", command->part, "Do part N of T: the reading is split over machines").type_name("N/T");
  app.add_option("--sample", command->sample, "Read only a share of the pieces, or so many of them")
      .type_name("PERCENT%|N");
  app.add_option("--seed", command->seed, "Draw another sample").type_name("NUMBER").shows_default();
  app.add_flag("--globals", command->globals, "List every name that loading the pickles would import, and its verdict");
  app.add_flag("--rehearse", command->rehearse,
               "Make the processes of an image again where nobody notices, and compare them with it");
  app.add_flag("--trust", command->trust,
               "Rehearse also an image that another user owns or may write, with every right it asks for");
  app.add_flag("--strict", command->strict,
               "What is odd is damage: CRCs that were not computed, bytes and files that nothing refers to, unknown "
               "names in pickles");
  app.add_flag("--optimizer", command->optimizer,
               "Optimizer state that parameters lack, or that lacks its parameter, is damage");
  app.add_flag("--skip-unreadable", command->skip_unreadable,
               "Leave out what cannot be read; without it the answer is not that all is sound");
  add_max_memory(app, command->max_memory);
  return [command](Context& context) { return run_verify(context, *command); };
}

}  // namespace ckpt::cli
