#include "cli/verify_image.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/plural.h"
#include "cli/remote_images.h"
#include "lib/base/clock.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/engine/rehearse.h"
#include "lib/remote/mounted.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

using Finding = store::ImageReader::Finding;

struct Outcome {
  std::vector<Finding> findings;
  size_t images = 0;
  uint64_t bytes = 0;  ///< of the chain
  std::optional<engine::Rehearsal> rehearsal;

  bool ok() const { return findings.empty() && (!rehearsal || rehearsal->differences.empty()); }
};

/// An image too damaged to be opened has its finding in the error.
Result<Outcome> examine(Context& context, const std::filesystem::path& dir) {
  Outcome out;
  auto reader = store::ImageReader::open(dir);
  if (!reader) {
    if (!answers_no(reader.error().code)) return reader.error();
    out.findings.push_back({reader.error().subject, 0, reader.error().message});
    return out;
  }
  out.images = (*reader)->chain().size();
  out.bytes = (*reader)->chain_bytes();
  CKPT_TRY_ASSIGN(out.findings, (*reader)->verify(context.progress, context.cancel));
  return out;
}

void print_json(Console& out, const std::filesystem::path& dir, const Outcome& outcome, uint64_t us) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Finding& f : outcome.findings) {
    findings.push_back({{"severity", "damage"}, {"file", f.file}, {"offset", f.offset}, {"message", f.what}});
  }
  if (outcome.rehearsal) {
    for (const std::string& text : outcome.rehearsal->differences)
      findings.push_back({{"severity", "difference"}, {"message", text}});
  }
  nlohmann::ordered_json doc = {{"schema", "ckpt.verify/1"},       {"kind", "process"},          {"path", dir.string()},
                                {"ok", outcome.ok()},  {"images", outcome.images},   {"bytes_read", outcome.bytes},
                                {"duration_us", us},               {"findings", findings}};
  if (outcome.rehearsal)
    doc["rehearsal"] = {{"processes", outcome.rehearsal->processes}, {"threads", outcome.rehearsal->threads},
                        {"pages", outcome.rehearsal->pages},         {"duration_us", outcome.rehearsal->us},
                        {"left_out", outcome.rehearsal->left_out},   {"notes", outcome.rehearsal->notes}};
  out.data(lay_out_json(doc.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)));
}

void print_findings(Console& out, const Outcome& outcome) {
  for (const Finding& f : outcome.findings) {
    out.verdict(fmt::format("damaged: {}: {}", escape_for_terminal(f.file), escape_for_terminal(f.what)));
  }
  if (!outcome.rehearsal) return;
  for (const std::string& text : outcome.rehearsal->differences)
    out.verdict(fmt::format("different: {}", escape_for_terminal(text)));
  for (const std::string& text : outcome.rehearsal->notes) out.info(fmt::format("note: {}", escape_for_terminal(text)));
  for (const std::string& text : outcome.rehearsal->left_out)
    out.info(fmt::format("not rehearsed: {}", escape_for_terminal(text)));
}

}  // namespace

Result<void> verify_image(Context& context, const std::filesystem::path& dir, const VerifyImageOptions& options) {
  Stopwatch watch;
  if (options.rehearse) {
    CKPT_TRY(check_trust(dir, options.trust));
    CKPT_TRY(fetch_from_elsewhere(dir));
  }
  CKPT_TRY_ASSIGN(Outcome outcome, examine(context, dir));
  if (options.rehearse && outcome.findings.empty()) {
    const auto trust = options.trust ? store::Trust::kAnybody : store::Trust::kOwn;
    CKPT_TRY_ASSIGN(outcome.rehearsal, engine::rehearse(dir, trust, context.cancel));
  }
  const uint64_t us = watch.elapsed_us();
  if (context.out.json()) print_json(context.out, dir, outcome, us);
  else print_findings(context.out, outcome);
  if (size_t n = outcome.findings.size(); n != 0) {
    return fail(Code::kCorrupt, dir.string(), "damaged: " + counted(n, "finding"));
  }
  if (size_t n = outcome.rehearsal ? outcome.rehearsal->differences.size() : 0; n != 0) {
    return fail(Code::kMismatch, dir.string(),
                "would not be restored as it was: " + counted(n, "difference"));
  }
  context.out.info(fmt::format("the process image is sound: {} in the chain, {} read in {}",
                               counted(outcome.images, "image"), human_bytes(outcome.bytes), human_us(us)));
  if (outcome.rehearsal) {
    const auto& made = *outcome.rehearsal;
    context.out.info(fmt::format(
        "it would be restored as it was: {}, {} and {} made again and compared in {}",
        counted(made.processes, "process", "processes"), counted(made.threads, "thread"), counted(made.pages, "page"),
        human_us(made.us)));
  }
  return {};
}

}  // namespace ckpt::cli
