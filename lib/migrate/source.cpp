#include "lib/migrate/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/hex.h"
#include "lib/base/io.h"
#include "lib/base/text.h"

namespace ckpt::migrate {

namespace fs = std::filesystem;

Result<std::unique_ptr<Source>> Source::open(const Remote& remote, Hello hello, uint64_t bytes_per_second,
                                             const Cancel& cancel) {
  CKPT_TRY_ASSIGN(hello.id, random_id());
  hello.silence_us = remote.silence_us;
  CKPT_TRY_ASSIGN(Watchdog watchdog, Watchdog::start(remote, hello.id));
  CKPT_TRY_ASSIGN(auto connection, Connection::open(remote, {remote.silence_us, bytes_per_second}, &cancel));
  std::unique_ptr<Source> out(new Source(std::move(watchdog), std::move(connection), hello, cancel));
  CKPT_TRY(out->greet(std::move(hello)));
  return out;
}

Result<void> Source::greet(Hello hello) {
  Link& link = connection_->link();
  const std::string text = to_json(hello);
  if (auto sent = link.send(Kind::kHello, as_bytes(text)); !sent) return real_reason(std::move(sent).error());
  auto answer = link.receive();
  if (!answer && answer.error().code == Code::kNotFound) {
    return Error(Code::kIo, link.peer(), "has ended the connection at once")
        .with_hint("ckpt must be there in the PATH of a login without a terminal; --remote-ckpt names it");
  }
  if (!answer) return std::move(answer).error();
  if (answer->kind == Kind::kNot) return parse_error(answer->text(), link.peer());
  if (answer->kind != Kind::kReady) return fail(Code::kCorrupt, link.peer(), "does not answer as a receiver does");
  return {};
}

Error Source::real_reason(Error error) {
  constexpr int kPatienceMs = 500;
  if (error.code == Code::kInterrupted) return error;
  Link& link = connection_->link();
  while (link.in() >= 0 && link.wait(kPatienceMs)) {
    auto frame = link.receive();
    if (!frame && frame.error().code == Code::kCorrupt) return std::move(frame).error();
    if (!frame) break;
    if (frame->kind == Kind::kNot) return parse_error(frame->text(), link.peer());
  }
  return error;
}

void Source::attach(engine::DumpOptions& options, ProgressSink& notes) {
  notes_ = &notes;
  if (!lazy_) {
    options.pages.take = [this](const std::string& file, uint64_t offset, ByteSpan data) {
      return send_pages(file, offset, data);
    };
  }
  options.publish = [this](const fs::path& folder) { return send_rest(folder); };
  options.hand_over = [this](const engine::HandOver& what) { return hand_over(what); };
}

Result<void> Source::send_pages(const std::string& file, uint64_t offset, ByteSpan data) {
  Sent* sent = nullptr;
  {
    std::lock_guard lock(mutex_);
    sent = &pages_[file];
  }
  CKPT_ASSERT(offset == sent->size);
  sent->digest.update(data);
  sent->size += data.size();
  while (!data.empty()) {
    const ByteSpan piece = data.first(std::min<size_t>(data.size(), Link::kMostPayload));
    auto done = connection_->link().send(Kind::kData, piece, file, offset);
    if (!done) {
      std::lock_guard lock(mutex_);
      return real_reason(std::move(done).error());
    }
    offset += piece.size();
    data = data.subspan(piece.size());
  }
  return {};
}

Result<void> Source::send_file(const fs::path& path) {
  const std::string name = path.filename().string();
  Link& link = connection_->link();
  if (lazy_ && is_pages_file(name)) return later_.announce(path, link);
  if (const auto pages = pages_.find(name); pages != pages_.end()) {
    const std::string digest = to_hex(pages->second.digest.digest());
    return link.send(Kind::kEnd, as_bytes(digest), name, pages->second.size);
  }
  CKPT_TRY_ASSIGN(const UniqueFd fd, io::open_file(path, O_RDONLY));
  CKPT_TRY_ASSIGN(const struct stat st, io::stat_fd(fd.get(), path.string()));
  std::vector<std::byte> block(std::min<uint64_t>(Link::kMostPayload, static_cast<uint64_t>(st.st_size)));
  Xxh3 digest;
  const auto size = static_cast<uint64_t>(st.st_size);
  for (uint64_t at = 0; at < size; at += block.size()) {
    const MutableByteSpan piece = MutableByteSpan(block).first(std::min<uint64_t>(block.size(), size - at));
    CKPT_TRY(io::pread_exact(fd.get(), piece, at, path.string()));
    digest.update(piece);
    CKPT_TRY(link.send(Kind::kData, piece, name, at));
  }
  const std::string hex = to_hex(digest.digest());
  return link.send(Kind::kEnd, as_bytes(hex), name, size);
}

/// All of the image but the pages, which have gone already; then the processes are made there. They stand still here.
Result<void> Source::send_rest(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_regular_file(ec)) files.push_back(it->path());
  }
  if (ec) return sys_error(ec.value(), folder.string(), "cannot be listed");
  for (const fs::path& file : files) {
    if (auto sent = send_file(file); !sent) return real_reason(std::move(sent).error());
  }
  if (auto sent = connection_->link().send(Kind::kMake); !sent) return real_reason(std::move(sent).error());
  return await_made();
}

/// The processes stand still here meanwhile: signs of life alone do not do for ever.
Result<void> Source::await_made() {
  constexpr uint64_t kSilences = 10;
  Link& link = connection_->link();
  for (Stopwatch watch;;) {
    if (watch.elapsed_us() > kSilences * link.silence_us())
      return Error(Code::kBusy, link.peer(), "does not get done with making the processes")
          .with_hint("a longer --timeout waits longer for it");
    CKPT_TRY_ASSIGN(const Frame frame, link.receive());
    if (frame.kind == Kind::kAlive) continue;
    if (frame.kind == Kind::kNot) return parse_error(frame.text(), link.peer());
    CKPT_TRY_ASSIGN(const bool wants, hear_wants(frame));
    if (wants) continue;
    const auto doc = nlohmann::json::parse(frame.text(), nullptr, false);
    const bool sound = frame.kind == Kind::kMade && doc.is_object() && doc.contains("pid") &&
                       doc["pid"].is_number_integer() && doc.contains("pid_outside") &&
                       doc["pid_outside"].is_number_integer();
    if (!sound) return fail(Code::kCorrupt, link.peer(), "does not answer as a receiver does");
    report_.pid = doc["pid"], report_.pid_outside = doc["pid_outside"];
    return {};
  }
}

/// Whether it was one; what it asks for has been sent.
Result<bool> Source::hear_wants(const Frame& frame) {
  if (!lazy_ || frame.kind != Kind::kWant) return false;
  CKPT_TRY(later_.send_wanted(frame, connection_->link()));
  return true;
}

/// The point of no return: once `kGo` is on its way only the other end knows.
Result<void> Source::hand_over(const engine::HandOver& what) {
  Link& link = connection_->link();
  CKPT_TRY(cancel_.check());
  if (auto stopped = watchdog_.stop(what); !stopped) return give_up(what, std::move(stopped).error());
  link.ignore_cancel();
  Error reason(Code::kIo, link.peer(), "has not let the processes go");
  auto verdict = await_verdict(what.frozen_at_us, reason);
  if (verdict && *verdict == Verdict::kNot) return give_up(what, std::move(reason));
  if (verdict && *verdict == Verdict::kRuns) {
    if (report_.downtime_us == 0) report_.downtime_us = monotonic_us() - what.frozen_at_us;
    report_.bytes_sent = link.sent(), report_.bytes_frozen = what.bytes_frozen;
    return {};
  }
  watchdog_.dismiss();
  return altered(verdict ? *verdict : Verdict::kUnknown, reason);
}

/// They run there, or may, and nothing here can make that undone.
Error Source::altered(Verdict verdict, const Error& reason) const {
  const std::string& peer = connection_->link().peer();
  const std::string which = fmt::format("(migration {})", id_);
  if (const bool ended = verdict == Verdict::kLost; ended || verdict == Verdict::kPartly) {
    const std::string lacked = ended ? "were ended when the rest of their memory did not come "
                                     : "not all of their memory has come ";
    return Error(Code::kTargetAltered, peer, "the processes have run there, and " + lacked + which)
        .with_cause(reason.text())
        .with_target("stopped, as they were before they ran there")
        .with_hint(ended ? "kill -CONT has them go on from there, whatever was done meanwhile; kill -KILL ends them"
                         : "end what is left of them there; then kill -CONT has these go on, whatever was done "
                           "meanwhile");
  }
  return Error(Code::kTargetAltered, peer, "cannot be asked whether the processes run there " + which)
      .with_cause(reason.text())
      .with_target("stopped, since they may run there")
      .with_hint("look there: where they run, kill -KILL the stopped ones here; where they do not, kill -CONT them");
}

/// They run there, and stand still here: until the other end has all that it lacks.
Result<void> Source::send_later() {
  Link& link = connection_->link();
  Stopwatch watch;
  const uint64_t before = link.sent();
  for (bool more = true;;) {
    if (more) {
      CKPT_TRY_ASSIGN(more, later_.send_next(link));
    }
    if (more && !link.wait(0)) continue;
    CKPT_TRY_ASSIGN(const Frame frame, link.receive());
    if (frame.kind == Kind::kAll) break;
    if (frame.kind == Kind::kNot) return parse_error(frame.text(), link.peer());
    CKPT_TRY_ASSIGN(const bool wants, hear_wants(frame));
    if (!wants && frame.kind != Kind::kAlive) return fail(Code::kCorrupt, link.peer(), "says what is not to be said");
  }
  report_.bytes_later = link.sent() - before, report_.later_us = watch.elapsed_us();
  return {};
}

/// `reason` becomes why not. Which of them run is not known before: a silence ends the wait, and nothing else does.
Result<Verdict> Source::await_verdict(uint64_t frozen_at_us, Error& reason) {
  Link& link = connection_->link();
  auto sent = link.send(Kind::kGo);
  while (sent) {  // for as long as it says that it is at work: files may have much content
    auto frame = link.receive();
    if (!frame) {
      reason = std::move(frame).error();
      break;
    }
    if (frame->kind == Kind::kRuns && lazy_) {
      report_.downtime_us = monotonic_us() - frozen_at_us;
      notes_->note("the processes run there; until the rest of their memory has come this cannot be stopped any more");
      auto all = send_later();
      if (all) return Verdict::kRuns;
      reason = std::move(all).error();
      break;
    }
    if (frame->kind == Kind::kRuns) return Verdict::kRuns;
    const auto wants = hear_wants(*frame);
    if (!wants) {
      reason = wants.error();
      break;
    }
    if (*wants) continue;
    if (frame->kind == Kind::kNot) {
      reason = parse_error(frame->text(), link.peer());
      return Verdict::kNot;
    }
    if (frame->kind != Kind::kAlive) break;
  }
  if (!sent) reason = std::move(sent).error();
  if (reason.code == Code::kNotFound) reason.code = Code::kIo;
  return watchdog_.ask();
}

/// They never run there.
Error Source::give_up(const engine::HandOver& what, Error reason) {
  int stay = 0;
  for (const engine::HandOver::Process& process : what.processes) {
    if (!process.stopped && ::syscall(SYS_pidfd_send_signal, process.pidfd, SIGCONT, nullptr, 0) != 0 && errno != ESRCH)
      ++stay;
  }
  watchdog_.dismiss();
  if (stay == 0) return reason;
  return std::move(reason).with_code(Code::kTargetAltered).with_target("stopped: kill -CONT has them go on");
}

void Source::finish() {
  watchdog_.dismiss();
  (void)connection_->link().send(Kind::kDone);
}

}  // namespace ckpt::migrate
