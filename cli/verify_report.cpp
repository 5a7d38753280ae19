#include "cli/verify_report.h"

#include <fmt/format.h>

#include "cli/plural.h"
#include "lib/base/json_text.h"
#include "lib/base/text.h"

namespace ckpt::cli {

void print_verify_findings(Console& out, const VerifyOutcome& outcome, bool globals) {
  for (const tensor::Finding& f : outcome.report.findings) {
    out.data(std::string(f.warning      ? "warning: "
                         : f.difference ? "differs: "
                                        : "damaged: ") +
             escape_for_terminal(f.text()) + "\n");
  }
  if (!globals) return;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, import] : outcome.report.imports) {
    const std::string verdict(pickle::verdict_name(import.judgement.verdict));
    rows.push_back({name, import.judgement.why.empty() ? verdict : verdict + ": " + std::string(import.judgement.why),
                    std::to_string(import.places), fmt::format("{} at byte {}", import.file, import.offset)});
  }
  out.table({"GLOBAL", "VERDICT", "PICKLES", "FIRST"}, rows, {2});
}

void print_verify_json(Console& out, const VerifyOutcome& outcome, bool ok) {
  const model::VerifyReport& report = outcome.report;
  std::string text =
      "{\"schema\": \"ckpt.verify/1\", \"kind\": \"model\", \"path\": " + json_string(outcome.path) +
      ", \"format\": " + json_string(outcome.format) +
      fmt::format(
          ", \"ok\": {}, \"tensors\": {}, \"objects\": {}, \"bytes_read\": {}, \"records\": {}, \"hashes\": {}, "
          "\"compared\": {}, \"not_checked\": {}, \"duration_us\": {},\n\"findings\": [",
          ok, outcome.tensors, outcome.objects, report.bytes_read, report.records, report.hashes, report.compared,
          report.unreadable, outcome.us);
  const char* separator = "\n  ";
  for (const tensor::Finding& f : report.findings) {
    text += fmt::format(
        "{}{{\"severity\": \"{}\", \"key\": {}, \"file\": {}, \"offset\": {}, \"message\": {}}}", separator,
        f.warning      ? "warning"
        : f.difference ? "difference"
                       : "damage",
        json_string(f.key), json_string(f.file), f.offset ? std::to_string(*f.offset) : "null", json_string(f.message));
    separator = ",\n  ";
  }
  text += "],\n\"globals\": [";
  separator = "\n  ";
  for (const auto& [name, import] : report.imports) {
    text += fmt::format(
        "{}{{\"name\": {}, \"verdict\": \"{}\", \"why\": {}, \"pickles\": {}, \"key\": {}, \"file\": {}, \"offset\": "
        "{}}}",
        separator, json_string(name), pickle::verdict_name(import.judgement.verdict), json_string(import.judgement.why),
        import.places, json_string(import.key), json_string(import.file), import.offset);
    separator = ",\n  ";
  }
  out.data(text + "]}\n");
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
