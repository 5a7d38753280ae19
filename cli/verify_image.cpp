#include "cli/verify_image.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/base/text.h"
#include "lib/store/image.h"
#include "lib/base/json_layout.h"

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

void print_json(Console& out, const std::filesystem::path& dir, const Outcome& outcome) {
  nlohmann::ordered_json findings = nlohmann::ordered_json::array();
  for (const Finding& f : outcome.findings) findings.push_back({{"file", f.file}, {"offset", f.offset}, {"what", f.what}});
  nlohmann::ordered_json doc = {{"schema", "ckpt.verify/1"}, {"what", "process-image"},     {"path", dir.string()},
                                {"ok", outcome.findings.empty()}, {"images", outcome.images}, {"bytes", outcome.bytes},
                                {"findings", findings}};
  out.data(lay_out_json(doc.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)));
}

void print_text(Console& out, const std::filesystem::path& dir, const Outcome& outcome) {
  if (outcome.findings.empty()) {
    out.data(fmt::format("{}: all right ({} image{}, {})\n", escape_for_terminal(dir.string()), outcome.images,
                         outcome.images == 1 ? "" : "s", human_bytes(outcome.bytes)));
    return;
  }
  for (const Finding& f : outcome.findings) {
    out.data(fmt::format("{}: {}\n", escape_for_terminal(f.file), escape_for_terminal(f.what)));
  }
}

}  // namespace

Result<void> verify_image(Context& context, const std::filesystem::path& dir) {
  CKPT_TRY_ASSIGN(Outcome outcome, examine(context, dir));
  if (context.out.json()) print_json(context.out, dir, outcome);
  else print_text(context.out, dir, outcome);
  if (outcome.findings.empty()) return {};
  size_t n = outcome.findings.size();
  return fail(Code::kAnswerNo, dir.string(), fmt::format("is damaged: {} fault{} found", n, n == 1 ? "" : "s"));
}

}  // namespace ckpt::cli
