// `ckpt verify PATH`: is every byte there that should be, and is it right.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/verify_image.h"
#include "formats/verify.h"
#include "lib/base/clock.h"
#include "lib/base/json_text.h"
#include "lib/base/text.h"
#include "lib/store/image.h"

namespace ckpt::cli {

namespace {

struct VerifyCommand {
  std::string path;
  bool strict = false;
};

void print_findings(Console& out, const std::vector<tensor::Finding>& findings) {
  for (const tensor::Finding& f : findings) {
    out.data(std::string(f.warning ? "warning: " : "damaged: ") + escape_for_terminal(f.text()) + "\n");
  }
}

void print_json(Console& out, const VerifyCommand& command, const tensor::Catalog& catalog, const formats::VerifyReport& report,
                bool ok, uint64_t us) {
  std::string text = "{\"schema\": \"ckpt.verify/1\", \"kind\": \"model\", \"path\": " + json_string(command.path) +
                     ", \"format\": " + json_string(catalog.format) +
                     fmt::format(", \"ok\": {}, \"tensors\": {}, \"objects\": {}, \"bytes_read\": {}, \"records\": {}, \"hashes\": {}, "
                                 "\"duration_us\": {},\n\"findings\": [",
                                 ok, catalog.tensors.size(), catalog.objects.size(), report.bytes_read, report.records, report.hashes, us);
  const char* separator = "\n  ";
  for (const tensor::Finding& f : report.findings) {
    text += fmt::format("{}{{\"severity\": \"{}\", \"key\": {}, \"file\": {}, \"offset\": {}, \"message\": {}}}", separator,
                        f.warning ? "warning" : "damage", json_string(f.key), json_string(f.file),
                        f.offset ? std::to_string(*f.offset) : "null", json_string(f.message));
    separator = ",\n  ";
  }
  out.data(text + "]}\n");
}

Result<void> run_verify(Context& context, const VerifyCommand& command) {
  if (store::ImageReader::looks_like_image(command.path)) return verify_image(context, command.path);
  Stopwatch watch;
  formats::ReadOptions options;
  options.tolerate_damage = true;
  auto catalog = formats::open_checkpoint(command.path, options);
  formats::VerifyReport report;
  if (!catalog) {
    if (catalog.error().code != Code::kAnswerNo) return std::move(catalog).error();
    report.findings.push_back({"", catalog.error().subject, std::nullopt, catalog.error().message, false});
    catalog = tensor::Catalog();
  } else {
    CKPT_TRY_ASSIGN(report, formats::verify(*catalog, command.strict, context.progress, context.cancel));
  }
  const auto damage = std::count_if(report.findings.begin(), report.findings.end(), [](const auto& f) { return !f.warning; });
  const uint64_t us = watch.elapsed_us();
  if (context.out.json()) print_json(context.out, command, *catalog, report, damage == 0, us);
  else print_findings(context.out, report.findings);
  if (damage != 0) return fail(Code::kAnswerNo, command.path, fmt::format("damaged: {} finding{}", damage, damage == 1 ? "" : "s"));
  context.out.info(fmt::format("{} is sound: {} tensors, {} objects, {} read in {}, {} CRCs and {} hashes compared", catalog->format,
                               catalog->tensors.size(), catalog->objects.size(), human_bytes(report.bytes_read), human_us(us),
                               report.records, report.hashes));
  return {};
}

}  // namespace

Command::Run add_verify(CLI::App& app) {
  auto command = std::make_shared<VerifyCommand>();
  app.add_option("path", command->path, "A model checkpoint or a process image")->type_name("PATH")->required();
  app.add_flag("--strict", command->strict, "Damage, not warnings: zip records whose CRC differs; parameters without their optimizer state, or the reverse");
  return [command](Context& context) { return run_verify(context, *command); };
}

}  // namespace ckpt::cli
