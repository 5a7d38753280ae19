#include "cli/verify_image.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/clock.h"
#include "lib/base/json_layout.h"
#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

using Finding = store::ImageReader::Finding;

struct Outcome {
  std::vector<Finding> findings;
  size_t images = 0;
  uint64_t bytes = 0;  ///< of the chain
};

/// An image too damaged to be opened has its finding in the error.
Result<Outcome> examine(Context& context, const std::filesystem::path& dir) {
  Outcome out;
  auto reader = store::ImageReader::open(dir);
  if (!reader) {
    if (reader.error().code != Code::kAnswerNo) return reader.error();
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
  nlohmann::ordered_json doc = {{"schema", "ckpt.verify/1"},       {"kind", "process"},          {"path", dir.string()},
                                {"ok", outcome.findings.empty()},  {"images", outcome.images},   {"bytes_read", outcome.bytes},
                                {"duration_us", us},               {"findings", findings}};
  out.data(lay_out_json(doc.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)));
}

void print_findings(Console& out, const Outcome& outcome) {
  for (const Finding& f : outcome.findings) {
    out.data(fmt::format("damaged: {}: {}\n", escape_for_terminal(f.file), escape_for_terminal(f.what)));
  }
}

}  // namespace

Result<void> verify_image(Context& context, const std::filesystem::path& dir) {
  Stopwatch watch;
  CKPT_TRY_ASSIGN(Outcome outcome, examine(context, dir));
  const uint64_t us = watch.elapsed_us();
  if (context.out.json()) print_json(context.out, dir, outcome, us);
  else print_findings(context.out, outcome);
  if (size_t n = outcome.findings.size(); n != 0) {
    return fail(Code::kAnswerNo, dir.string(), fmt::format("damaged: {} finding{}", n, n == 1 ? "" : "s"));
  }
  context.out.info(fmt::format("the process image is sound: {} image{} in the chain, {} read in {}", outcome.images,
                               outcome.images == 1 ? "" : "s", human_bytes(outcome.bytes), human_us(us)));
  return {};
}

}  // namespace ckpt::cli
