// receive: standard input and output are the stream of a migration; what arrives becomes running processes.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/receiver.h"
#include "lib/migrate/claim.h"
#include "lib/migrate/link.h"

namespace ckpt::cli {

namespace {

struct ReceiveFlags {
  std::string dir;
};

Result<void> answer(migrate::Link& link, const std::string& id) {
  CKPT_TRY_ASSIGN(const migrate::Verdict verdict, migrate::ask(id));
  const std::string text = nlohmann::json{{"verdict", migrate::word_for(verdict)}}.dump();
  return link.send(migrate::Kind::kReady, as_bytes(text));
}

Result<void> serve(migrate::Link& link, const ReceiveFlags& flags, Context& context) {
  CKPT_TRY_ASSIGN(const migrate::Frame frame, link.receive());
  if (frame.kind != migrate::Kind::kHello) return fail(Code::kCorrupt, link.peer(), "does not begin as a source does");
  CKPT_TRY_ASSIGN(migrate::Hello hello, migrate::parse_hello(frame.text()));
  if (hello.asks) return answer(link, hello.id);
  if (hello.wishes.dir.empty()) hello.wishes.dir = flags.dir;
  Receiver receiver(link, std::move(hello), context);
  return receiver.run();
}

Result<void> run_receive(const ReceiveFlags& flags, Context& context) {
  constexpr uint64_t kSilenceUs = 600'000'000;
  if (::isatty(STDIN_FILENO) == 1)
    return Error(Code::kUsage, "ckpt receive", "reads what ckpt migrate sends, and there is a terminal")
        .with_hint("ckpt migrate starts it by itself");
  auto copy_of = [](int fd) { return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3)); };
  migrate::Link link(copy_of(STDIN_FILENO), copy_of(STDOUT_FILENO), "the source", {kSilenceUs, 0}, &context.cancel);
  Result<void> done = serve(link, flags, context);
  if (done) return done;
  link.ignore_cancel();
  const std::string text = migrate::to_json(done.error());
  if (!link.send(migrate::Kind::kNot, as_bytes(text).first(std::min(text.size(), migrate::Link::kMostPayload))))
    return done;
  context.exit_status = exit_code(done.error().code);  // the source tells of it
  return {};
}

}  // namespace

Command::Run add_receive(VerbOptions& app) {
  auto flags = std::make_shared<ReceiveFlags>();
  app.add_option("--dir", flags->dir, "Keep the image in this folder meanwhile (default: in memory)").type_name("DIR");
  return [flags](Context& context) { return run_receive(*flags, context); };
}

}  // namespace ckpt::cli
