#include "cli/receiver.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lib/base/clock.h"
#include "lib/base/pipe.h"
#include "lib/base/text.h"
#include "lib/migrate/claim.h"
#include "lib/migrate/later_pages.h"
#include "lib/migrate/permit.h"
#include "lib/migrate/welcome.h"

namespace ckpt::cli {

using migrate::Frame;
using migrate::PermitWord;
using migrate::Kind;

namespace {

/// As long as the source waits for the processes to be made.
constexpr uint64_t kStallSilences = 10;

/// With all of their memory, or without.
bool they_run(const Result<migrate::Verdict>& verdict) {
  return verdict && (*verdict == migrate::Verdict::kRuns || *verdict == migrate::Verdict::kPartly);
}

}  // namespace

Result<void> Receiver::take_image() {
  for (;;) {
    CKPT_TRY_ASSIGN(const Frame frame, link_.receive());
    if (frame.kind == Kind::kAlive) continue;
    if (frame.kind == Kind::kMake) return stage_->finish();
    const bool later = lazy() && frame.kind == Kind::kLater && migrate::is_pages_file(frame.name);
    if (frame.kind != Kind::kData && frame.kind != Kind::kEnd && !later)
      return fail(Code::kCorrupt, link_.peer(), "sends what is none of an image's files");
    CKPT_TRY(stage_->take(frame));
  }
}

std::vector<std::string> Receiver::restore_words(int permit) const {
  const migrate::RestoreWishes& wishes = hello_.wishes;
  std::vector<std::string> out = {"restore", "-f", stage_->path().string(), "-d",
                                  "--permit=" + migrate::Permit::describe(permit, hello_.id)};
  if (wishes.new_pid_namespace) out.emplace_back("--new-pidns");
  if (wishes.pipes_to_null) out.emplace_back("--external-pipes=null");
  for (const std::string& address : wishes.addresses) out.push_back("--map-address=" + address);
  for (const std::string& file : wishes.allow_changed) out.push_back("--allow-changed=" + file);
  if (desk_) out.insert(out.end(), {"--lazy", "--coming=" + desk_->describe()});
  if (wishes.drop_labels) out.emplace_back("--drop-labels");
  return out;
}

Result<void> Receiver::run() {
  CKPT_TRY(migrate::check_welcome(hello_));
  migrate::forget_old();
  CKPT_TRY_ASSIGN(migrate::Stage stage, migrate::Stage::make(hello_.wishes.dir));
  stage_.emplace(std::move(stage));
  CKPT_TRY(check_room());
  const std::string ready = nlohmann::json{{"version", migrate::kVersion}, {"room", stage_->room()}}.dump();
  CKPT_TRY(link_.send(Kind::kReady, as_bytes(ready)));
  CKPT_TRY(take_image());
  CKPT_TRY(check_room());
  return make();
}

/// Before anything has come, and once the image is there, in memory perhaps: the processes themselves have to fit, or
/// the kernel would end something else for them.
Result<void> Receiver::check_room() const {
  const bool beside = stage_->bytes() != 0 && stage_->in_memory();
  const char* whose = beside ? "the processes have, beside their image," : "the processes have";
  auto room = migrate::check_memory(hello_.memory, whose);
  if (room || !beside) return room;
  return std::move(room).error().with_hint("--dir keeps the image in a folder there");
}

/// Once the processes run nothing here is an error any more, but memory that never comes.
Result<void> Receiver::make() {
  CKPT_TRY_ASSIGN(auto ends, make_socket_pair());
  gate_ = std::move(ends.first);
  CKPT_TRY_ASSIGN(UniqueFd theirs, migrate::inheritable(ends.second.get()));
  ends.second.reset();
  if (lazy()) {
    CKPT_TRY_ASSIGN(desk_, migrate::PageDesk::open());
    link_.set_silence(hello_.wishes.lazy_silence_us);
  }
  CKPT_TRY_ASSIGN(SignalQueue signals, SignalQueue::take({SIGINT, SIGTERM, SIGHUP}));
  CKPT_TRY_ASSIGN(CkptRun restore, CkptRun::start(restore_words(theirs.get()), signals));
  theirs.reset();
  if (desk_) desk_->close_theirs();
  heard_us_ = monotonic_us();
  for (Result<bool> runs = false; !*runs;) {
    runs = step(restore, signals);
    if (runs) continue;
    gate_.reset();  // whatever else it waits for, the restore ends by this
    if (desk_) desk_->give_up();
    return std::move(runs).error();
  }
  return finish(restore, signals);
}

/// The processes run.
Result<void> Receiver::finish(CkptRun& restore, SignalQueue& signals) {
  constexpr uint64_t kPatienceUs = 10'000'000;
  link_.ignore_cancel();
  if (lazy()) {
    if (auto all = await_pages(signals); !all) {
      lose();
      return all;
    }
  }
  link_.set_silence(kPatienceUs);
  const bool told = link_.send(lazy() ? Kind::kAll : Kind::kRuns).has_value();
  for (Stopwatch watch; !restore.finished() && watch.elapsed_us() < kPatienceUs;) ::usleep(1'000);
  if (!told) return {};
  auto last = link_.receive();
  if (last && last->kind == Kind::kDone) migrate::forget(hello_.id);
  return {};
}

/// Those who need pages, and pages that come. A source that is lost is noticed where it is heard.
Result<void> Receiver::hear_desk() {
  auto heard = desk_->hear(*stage_, link_);
  return heard || heard.error().code != Code::kIo ? heard : Result<void>();
}

Result<void> Receiver::take_later(const Frame& frame) {
  if (!stage_->is_later(frame.name)) return fail(Code::kCorrupt, escape_for_terminal(frame.name), "was not announced");
  CKPT_TRY(stage_->take(frame));
  desk_->arrived(*stage_);
  return {};
}

Result<void> Receiver::check_daemon() const {
  if (!desk_->failed()) return {};
  return fail(Code::kIo, "the lazy-pages daemon", "has failed: not all of their memory has reached the processes");
}

/// The source hears that this end is at work, whether or not there is something to do.
Result<void> Receiver::beat(uint64_t& said_us, uint64_t every_us) {
  if (monotonic_us() - said_us < every_us) return {};
  said_us = monotonic_us();
  return link_.send(Kind::kAlive);
}

/// All pages are here: until the processes have them, for some time. Of a source that is lost meanwhile nothing more is
/// needed.
Result<void> Receiver::await_memory() {
  constexpr uint64_t kPatienceUs = 10'000'000, kBeatUs = 200'000;
  uint64_t said_us = 0;
  for (Stopwatch watch; !desk_->finished() && watch.elapsed_us() < kPatienceUs;) {
    pollfd ask{desk_->descriptor(), POLLIN, 0};
    constexpr int kLookMs = 5;
    if (::poll(&ask, 1, kLookMs) > 0) CKPT_TRY(hear_desk());
    CKPT_TRY(check_daemon());
    (void)beat(said_us, kBeatUs);
  }
  return check_daemon();
}

/// They run, and lack memory: until all has come, or none comes any more, or somebody here ends it.
Result<void> Receiver::await_pages(SignalQueue& signals) {
  constexpr uint64_t kBeatUs = 500'000;
  CKPT_TRY(link_.send(Kind::kRuns));
  uint64_t heard_us = monotonic_us(), said_us = heard_us;
  while (stage_->missing() != 0) {
    std::array<pollfd, 3> fds = {pollfd{link_.in(), POLLIN, 0}, pollfd{desk_->descriptor(), POLLIN, 0},
                                 pollfd{signals.fd(), POLLIN, 0}};
    (void)::poll(fds.data(), fds.size(), static_cast<int>(kBeatUs / 1000));
    while (const int signal = signals.next()) {
      if (signal != SIGCHLD) return fail(Code::kInterrupted, "", "interrupted");
    }
    (void)beat(said_us, kBeatUs);  // a source that is lost is noticed where it is heard
    if (fds[1].revents != 0) CKPT_TRY(hear_desk());
    CKPT_TRY(check_daemon());
    if (monotonic_us() - heard_us > link_.silence_us())
      return fail(Code::kBusy, link_.peer(), "has sent nothing for too long");
    if (fds[0].revents == 0) continue;
    CKPT_TRY_ASSIGN(const Frame frame, link_.receive());
    heard_us = monotonic_us();
    if (frame.kind == Kind::kAlive) continue;
    if (frame.kind != Kind::kData) return fail(Code::kCorrupt, link_.peer(), "sends what is not to be said now");
    CKPT_TRY(take_later(frame));
  }
  CKPT_TRY(await_memory());
  // Whoever asks is told so before anybody here can end.
  CKPT_TRY(migrate::conclude(hello_.id, migrate::Verdict::kRuns));
  desk_->all_in();
  return {};
}

/// Part of a memory is none: what runs here ends before it finds that out, and those at the source stay as they were.
void Receiver::lose() {
  const bool ended = migrate::end_all(processes_, namespaces_) == migrate::Verdict::kNot;
  if (ended) (void)migrate::conclude(hello_.id, migrate::Verdict::kLost);
  desk_->give_up();
}

/// A restore that waits for pages can do nothing else: none that come for too long is an error.
Result<void> Receiver::check_silence(bool heard) {
  const uint64_t now = monotonic_us();
  if (heard || !desk_ || !desk_->owes()) heard_us_ = now;
  if (now - heard_us_ <= link_.silence_us()) return {};
  return fail(Code::kBusy, link_.peer(), "has sent nothing for too long");
}

/// It is too late to refuse: that no more comes is told of once they run, or of the restore that misses it now.
void Receiver::part() {
  link_.close();
  if (desk_) desk_->give_up();
}

/// The restore gets on with nothing, in a file system that does not answer perhaps: what it has made never runs, unless
/// it was let go at the last moment. True: it was.
Result<bool> Receiver::give_up_on(CkptRun& restore) {
  if (has_word_that_they_run() || migrate::says_that_they_run(hello_.id)) return true;
  const pid_t pid = restore.pid();
  std::vector<pid_t> made;
  for (const auto& process : processes_) made.push_back(process.pid);
  // What it was at may have been answered just now: until nobody lets them go any more, nothing that runs is killed.
  const bool nobody_can = migrate::kill_who_lets_go(pid, made);
  if (has_word_that_they_run() || migrate::says_that_they_run(hello_.id)) return true;
  if (nobody_can && they_run(migrate::ask(hello_.id))) return true;
  migrate::kill_restore(pid, made);
  restore.abandon();
  const bool ended = migrate::end_all(processes_, namespaces_) == migrate::Verdict::kNot;
  if (ended && migrate::conclude(hello_.id, migrate::Verdict::kNot)) {
    return Error(Code::kBusy, fmt::format("process {}, ckpt restore", pid),
                 fmt::format("has got on with nothing for {}, and is given up: files that it was putting back may be "
                             "half written, and what it was at may still be written once its file system answers",
                             human_us(kStallSilences * hello_.silence_us)))
        .with_hint("a longer --timeout waits longer for it");
  }
  link_.close();  // no word is better than a wrong one
  return fail(Code::kBug, "", "it is not known whether the processes run");
}

/// True once the processes run.
Result<bool> Receiver::step(CkptRun& restore, SignalQueue& signals) {
  constexpr int kBeatMs = 500;
  constexpr uint64_t kPatienceUs = 60'000'000;
  std::array<pollfd, 4> fds = {pollfd{gate_.get(), POLLIN, 0}, pollfd{signals.fd(), POLLIN, 0},
                               pollfd{going_ && !lazy() ? -1 : link_.in(), POLLIN, 0},
                               pollfd{desk_ ? desk_->descriptor() : -1, POLLIN, 0}};
  const int ready = ::poll(fds.data(), fds.size(), kBeatMs);
  Result<void> heard = ready == 0 ? link_.send(Kind::kAlive) : Result<void>();
  if (fds[0].revents != 0) {
    CKPT_TRY_ASSIGN(const bool runs, hear_gate());
    if (runs) return true;
  }
  while (const int signal = signals.next()) {
    if (signal != SIGCHLD && !going_) return fail(Code::kInterrupted, "", "interrupted");
  }
  if (heard && fds[3].revents != 0) heard = hear_desk();
  if (heard && fds[2].revents != 0) heard = hear_source();
  if (heard) heard = check_silence(fds[2].revents != 0);
  if (!heard && !going_) return std::move(heard).error();
  if (!heard) part();
  if (!going_ && made_at_us_ != 0 && monotonic_us() - made_at_us_ > kPatienceUs)
    return fail(Code::kBusy, link_.peer(), "does not say that the processes may run");
  if (restore.finished()) return look_back(restore);
  if (!going_) return false;
  if (!stall_) stall_.emplace(restore.pid(), kStallSilences * hello_.silence_us);
  if (heard && fds[2].revents != 0) stall_->got_on();  // pages have come
  return ready == 0 && stall_->stalled() ? give_up_on(restore) : Result<bool>(false);
}

/// True once the processes run.
Result<bool> Receiver::hear_gate() {
  std::array<char, 64> word{};
  const ssize_t got = ::recv(gate_.get(), word.data(), word.size() - 1, 0);
  if (got <= 0) {
    gate_.reset();  // how the restore ended tells more
    return false;
  }
  if (word[0] == static_cast<char>(PermitWord::kRuns)) return true;
  std::istringstream numbers(word.data() + 1);
  int pid = 0;
  numbers >> pid >> outside_;
  made_at_us_ = monotonic_us();
  const std::string made = nlohmann::json{{"pid", pid}, {"pid_outside", outside_}}.dump();
  CKPT_TRY(link_.send(Kind::kMade, as_bytes(made)));
  return false;
}

Result<void> Receiver::hear_source() {
  CKPT_TRY_ASSIGN(const Frame frame, link_.receive());
  if (frame.kind == Kind::kAlive) return {};
  if (lazy() && frame.kind == Kind::kData) return take_later(frame);
  if (going_ || frame.kind != Kind::kGo || made_at_us_ == 0)
    return fail(Code::kCorrupt, link_.peer(), "sends what is not to be said now");
  CKPT_TRY_ASSIGN(processes_, migrate::Claim::find(outside_));
  namespaces_ = migrate::namespaces_of(processes_);
  std::string go(1, static_cast<char>(PermitWord::kGo));
  for (const auto& process : processes_) go += fmt::format(" {} {}", process.pid, process.start_time);
  if (go.size() > migrate::kMostGo) return fail(Code::kNoRoom, "", "there are too many processes to hand over at once");
  if (::send(gate_.get(), go.data(), go.size(), MSG_NOSIGNAL) < 0) return {};  // it has ended: the next step sees how
  going_ = true;
  return {};
}

/// That has not been heard yet.
bool Receiver::has_word_that_they_run() {
  std::array<char, 64> word{};
  while (gate_ && ::recv(gate_.get(), word.data(), word.size(), MSG_DONTWAIT) > 0) {
    if (word[0] == static_cast<char>(PermitWord::kRuns)) return true;
  }
  return false;
}

/// The restore has ended without having said that they run.
Result<bool> Receiver::look_back(CkptRun& restore) {
  if (has_word_that_they_run()) return true;
  Error error = restore.error();
  if (!going_) return error;
  const auto verdict = migrate::ask(hello_.id);
  if (they_run(verdict)) return true;
  if (verdict && *verdict == migrate::Verdict::kNot) return error;
  link_.close();  // no word is better than a wrong one
  return fail(Code::kBug, "", "it is not known whether the processes run");
}

}  // namespace ckpt::cli
