#include "cli/verify_report.h"

#include <fmt/format.h>

#include "cli/plural.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"

namespace ckpt::cli {

void print_verify_findings(Console& out, const VerifyOutcome& outcome, bool globals) {
  for (const tensor::Finding& f : outcome.report.findings) {
    out.verdict(std::string(f.warning      ? "warning: "
                            : f.difference ? "differs: "
                                           : "damaged: ") +
                escape_for_terminal(f.text()));
  }
  if (!globals) return;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, import] : outcome.report.imports) {
    const std::string verdict(pickle::verdict_name(import.classification.verdict)), why(import.classification.why);
    rows.push_back({name, why.empty() ? verdict : verdict + ": " + why,
                    std::to_string(import.places), fmt::format("{} at byte {}", import.file, import.offset)});
  }
  out.table({"GLOBAL", "VERDICT", "PICKLES", "FIRST"}, rows, {2});
}

void print_verify_json(Console& out, const VerifyOutcome& outcome, bool ok) {
  const model::VerifyReport& report = outcome.report;
  JsonWriter json;
  json.open('{');
  json.members("schema", "ckpt.verify/1", "kind", "model", "path", outcome.path, "format", outcome.format, "ok", ok,
               "tensors", outcome.tensors, "objects", outcome.objects, "bytes_read", report.bytes_read,
               "records", report.records, "hashes", report.hashes, "compared", report.compared,
               "not_checked", report.unreadable, "duration_us", outcome.us);
  json.open("findings", '[');
  for (const tensor::Finding& f : report.findings) {
    json.row_of("severity", f.warning ? "warning" : f.difference ? "difference" : "damage", "key", f.key,
                "file", f.file, "offset", f.offset, "message", f.message);
  }
  json.close();
  json.open("globals", '[');
  for (const auto& [name, import] : report.imports) {
    json.row_of("name", name, "verdict", pickle::verdict_name(import.classification.verdict), "why",
                import.classification.why, "pickles", import.places, "key", import.key, "file", import.file, "offset",
                import.offset);
  }
  out.data(std::move(json).finish());
}

std::string verify_summary(const VerifyOutcome& outcome) {
  const model::VerifyReport& report = outcome.report;
  if (outcome.format == "pickle")
    return fmt::format("no checkpoint; {} that its pickles import, none is dangerous",
                       counted(report.imports.size(), "name"));
  const std::string but = report.unreadable == 0 ? "" : fmt::format(" but for {} not checked", report.unreadable);
  std::string out = fmt::format("{} is sound{}: {}, {}, {} read in {}, {} and {} compared", outcome.format, but,
                                counted(outcome.tensors, "tensor"), counted(outcome.objects, "object"),
                                human_bytes(report.bytes_read), human_us(outcome.us), counted(report.records, "CRC"),
                                counted(report.hashes, "hash", "hashes"));
  if (report.compared != 0)
    out += fmt::format(", {} equal to the other checkpoint's", counted(report.compared, "tensor"));
  return out;
}

}  // namespace ckpt::cli
