// list, rm and verify of a store.
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "cli/plural.h"
#include "cli/store_flags.h"
#include "lib/base/json_writer.h"
#include "lib/base/text.h"
#include "lib/repository/check.h"
#include "lib/repository/usage.h"
#include "lib/schedule/saves.h"

namespace ckpt::cli {

namespace {

void print_usage_json(Console& out, const std::string& place, const repository::StoreUsage& usage) {
  JsonWriter json;
  json.open('{');
  json.members("schema", "ckpt.list-store/1", "store", place, "bytes", usage.bytes, "stored_bytes", usage.stored,
               "unneeded_bytes", usage.unneeded);
  json.open("names", '[');
  for (const repository::NameUsage& one : usage.names) {
    const repository::Ref& ref = one.ref;
    json.row('{');
    json.members("name", ref.name, "ok", !one.damage, "kind", ref.kind, "format", ref.format, "created", ref.created,
                 "pushed", ref.pushed, "bytes", ref.bytes, "files", ref.files, "images", ref.images, "alone_bytes",
                 one.alone);
    if (one.damage) json.member("error", one.damage->text());
    json.close();
  }
  json.close();
  json.open("damaged", '[');
  for (const Error& error : usage.damaged) json.value(error.text());
  out.data(std::move(json).finish());
}

}  // namespace

Result<void> list_store(Context& context, const StoreFlags& flags) {
  CKPT_TRY_ASSIGN(const auto store, open_store(context, flags, false));
  CKPT_TRY_ASSIGN(const repository::StoreUsage usage, repository::measure_usage(*store));
  if (context.out.json()) {
    print_usage_json(context.out, flags.place, usage);
    return {};
  }
  std::vector<std::vector<std::string>> rows;
  for (const repository::NameUsage& one : usage.names) {
    const repository::Ref& ref = one.ref;
    const std::string chain = ref.images > 1 ? fmt::format(" of {} images", ref.images) : "";
    rows.push_back({ref.name, one.damage ? "damaged" : ref.format + chain, ref.created, human_bytes(ref.bytes),
                    human_bytes(one.alone)});
  }
  for (const Error& error : usage.damaged)
    rows.push_back({error.subject.substr(error.subject.rfind('/') + 1), "damaged", "", "", ""});
  if (rows.empty())
    context.out.info("nothing is in the store " + escape_for_terminal(flags.place));
  else
    context.out.table({"NAME", "WHAT", "CREATED", "SIZE", "ALONE"}, rows, {3, 4});
  context.out.info(fmt::format("{} in {} of packs; {} are needed by no name", human_bytes(usage.bytes),
                               human_bytes(usage.stored), human_bytes(usage.unneeded)));
  return {};
}

namespace {

/// The names that go: those that are given, or of those that match what the rules do not keep.
Result<std::vector<std::string>> names_to_remove(repository::Repository& store, const StoreRemoval& removal) {
  if (!removal.rules.any()) {
    if (removal.names.empty())
      return fail(Code::kUsage, "NAME", "is missing: which names, or a rule such as --keep-last");
    CKPT_TRY_ASSIGN(const auto there, store.backend().list(repository::kImages));
    for (const std::string& name : removal.names) {
      CKPT_TRY(repository::check_name(name));
      if (std::none_of(there.begin(), there.end(), [&](const auto& one) { return one.name == name; }))
        return fail(Code::kNotFound, name, "is not in the store " + store.backend().subject());
    }
    return removal.names;
  }
  std::vector<Error> damaged;  // nobody's business here
  CKPT_TRY_ASSIGN(const std::vector<repository::Ref> refs, store.refs(&damaged));
  std::vector<schedule::KnownSave> saves;
  for (const repository::Ref& ref : refs) {
    const bool matches = removal.names.empty() ||
                         std::any_of(removal.names.begin(), removal.names.end(),
                                     [&](const auto& p) { return ::fnmatch(p.c_str(), ref.name.c_str(), 0) == 0; });
    if (matches) saves.push_back({ref.name, ref.created, "", schedule::step_of(ref.name)});
  }
  return schedule::superfluous(std::move(saves), removal.rules);
}

}  // namespace

Result<void> remove_from_store(Context& context, const StoreFlags& flags, const StoreRemoval& removal) {
  CKPT_TRY_ASSIGN(const auto store, open_store(context, flags, false));
  CKPT_TRY_ASSIGN(const std::vector<std::string> names, names_to_remove(*store, removal));
  for (const std::string& name : names) {
    CKPT_TRY(context.cancel.check());
    if (!removal.dry_run) {
      CKPT_TRY(store->backend().remove(repository::in_folder(repository::kImages, name)));
      context.out.info("removed " + name);
    } else if (!context.out.json()) {
      context.out.data("would remove " + name + "\n");
    }
  }
  if (context.out.json()) {
    JsonWriter json;
    json.open('{');
    json.members("schema", "ckpt.rm-store/1", "store", flags.place, "dry_run", removal.dry_run, "names", names);
    context.out.data(std::move(json).finish());
  } else if (!removal.dry_run && !names.empty()) {
    context.out.info("ckpt gc --store gives back the room that they took");
  }
  return {};
}

namespace {

void print_check_json(Console& out, const std::string& place, const repository::CheckReport& report, bool ok) {
  JsonWriter json;
  json.open('{');
  json.members("schema", "ckpt.verify-store/1", "store", place, "ok", ok, "names", report.names, "chunks",
               report.chunks, "bytes_read", report.bytes, "duration_us", report.us, "damage", report.damage, "repaired",
               report.repaired);
  json.open("losses", '[');
  for (const repository::Loss& loss : report.losses)
    json.row_of("name", loss.name, "path", loss.path, "chunks", loss.chunks, "bytes", loss.bytes);
  out.data(std::move(json).finish());
}

void print_check(Console& out, const repository::CheckReport& report) {
  for (const std::string& what : report.damage) out.data("damaged: " + escape_for_terminal(what) + "\n");
  for (const repository::Loss& loss : report.losses) {
    const std::string what =
        loss.path.empty() ? "cannot be read at all" : fmt::format("lost {} of {}", human_bytes(loss.bytes), loss.path);
    out.data("lost: " + escape_for_terminal(loss.name + ": " + what) + "\n");
  }
  for (const std::string& what : report.repaired) out.info("repaired: " + escape_for_terminal(what));
}

}  // namespace

Result<void> verify_store(Context& context, const StoreFlags& flags, const StoreVerification& verification) {
  CKPT_TRY_ASSIGN(const auto store, open_store(context, flags, false));
  repository::CheckOptions options;
  options.names = verification.names, options.percent = verification.percent, options.seed = verification.seed;
  options.repair = verification.repair;
  CKPT_TRY_ASSIGN(const repository::CheckReport report, repository::check(*store, options, context.progress));
  const size_t findings = report.damage.size() + report.losses.size();
  const bool ok = report.losses.empty() && (findings == 0 || verification.repair);
  if (context.out.json())
    print_check_json(context.out, flags.place, report, ok);
  else
    print_check(context.out, report);
  if (!ok) {
    Error error(Code::kCorrupt, flags.place, fmt::format("damaged: {}", counted(findings, "finding")));
    if (!verification.repair) error.hint = "--repair saves what can be saved";
    return error;
  }
  context.out.info(fmt::format("the store is sound{}: {}, {} in {} read in {}", findings != 0 ? " again" : "",
                               counted(report.names, "name"), counted(report.chunks, "chunk"),
                               human_bytes(report.bytes), human_us(report.us)));
  return {};
}

}  // namespace ckpt::cli
