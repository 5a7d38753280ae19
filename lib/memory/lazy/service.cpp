#include "lib/memory/lazy/service.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lib/base/clock.h"
#include "lib/base/threads.h"
#include "lib/base/worker_pool.h"
#include "lib/state/validate.h"

namespace ckpt::restore {

namespace {

/// What a thread takes at a time: a disk reads as much at its full speed, and the threads stay out of each other's page
/// tables.
constexpr uint64_t kJobSize = 2 << 20;
constexpr int kAgainMs = 1, kLookForEndMs = 500;
constexpr uint64_t kMostProblems = 20;

/// Of the calling thread; threads that it makes have the same.
void set_niceness(int value) { ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), value); }

}  // namespace

std::vector<uint32_t> order_of_blocks(const store::ImageReader& image, size_t first, size_t last,
                                      const std::vector<uint64_t>& hot) {
  const auto& blocks = image.blocks();
  std::vector<uint64_t> sorted = hot;
  std::sort(sorted.begin(), sorted.end());
  auto is_near = [&](uint64_t address) {  // in the block, the one below or the one above
    auto it = std::lower_bound(sorted.begin(), sorted.end(), address - store::kBlockSize);
    return it != sorted.end() && *it < address + 2 * store::kBlockSize;
  };
  std::vector<uint32_t> near, rest;
  near.reserve(3 * hot.size());
  rest.reserve(last - first);
  for (size_t i = first; i < last; ++i) {
    if (blocks[i].data_mask == 0) continue;
    (is_near(blocks[i].address) ? near : rest).push_back(static_cast<uint32_t>(i));
  }
  if (image.chain().size() > 1)
    std::stable_partition(rest.begin(), rest.end(), [&](uint32_t i) { return image.is_of_newest(i); });
  near.insert(near.end(), rest.begin(), rest.end());
  return near;
}

void LazyPagesService::add(std::unique_ptr<LazyPagesMemory> memory, std::vector<uint64_t> hot) {
  Client& client = clients_.emplace_back();
  client.memory = std::move(memory);
  client.hot = std::move(hot);
}

/// Those that have none yet. In proportion to the memory, so not before the processes run. Under mutex_.
void LazyPagesService::make_orders() {
  for (Client& client : clients_) {
    if (std::exchange(client.ordered, true)) continue;
    client.memory->take_blocks();
    client.order = order_of_blocks(image_, client.memory->first(), client.memory->last(), client.hot);
    client.left = client.order.size();
    if (client.order.empty()) ::eventfd_write(wake_.get(), 1);
  }
}

LazyPagesService::Job LazyPagesService::next_job() {
  std::unique_lock lock(mutex_);
  for (;;) {
    make_orders();
    for (Client& client : clients_) {
      const size_t first = client.next;
      if (first == client.order.size()) continue;
      const auto piece = [&](size_t i) { return image_.blocks()[client.order[i]].address / kJobSize; };
      while (client.next < client.order.size() && piece(client.next) == piece(first)) ++client.next;
      return {&client, first, client.next};
    }
    if (stopping_) return {};
    changed_.wait(lock);
  }
}

void LazyPagesService::do_job(const Job& job) {
  LazyPagesMemory& memory = *job.client->memory;
  for (size_t i = job.first; i < job.last; ++i) {
    while (memory.supply(job.client->order[i]) == LazyPagesMemory::Outcome::kAgain) ::usleep(50);
  }
  const bool last = job.client->left.fetch_sub(job.last - job.first) == job.last - job.first;
  if (last || memory.has_problems()) ::eventfd_write(wake_.get(), 1);
}

/// In proportion to the memory, so not before the processes run: until then each page that is asked for is looked up by
/// itself.
void LazyPagesService::load_pages() {
  Result<void> loaded = image_.load_pages();
  if (loaded) loaded = validate_pages(image_.manifest().tree, image_.blocks());
  if (loaded) return;
  log_.write(LazyPagesLog::Level::kProblem, loaded.error().text());
  ::_exit(1);  // its guardian refuses all that is missing
}

void LazyPagesService::bring_in() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return going_ || stopping_; });
    if (!going_) return;
  }
  // The process has just begun, and what it needs soon is few pages: it gets the processors first.
  constexpr useconds_t kHeadStartUs = 3'000;
  set_niceness(0);
  ::usleep(kHeadStartUs);
  std::call_once(loaded_, [this] { load_pages(); });
  while (true) {
    const Job job = next_job();
    if (job.client == nullptr) return;
    do_job(job);
  }
}

void LazyPagesService::receive(Client& client) {
  std::vector<std::unique_ptr<LazyPagesMemory>> children;
  client.memory->receive(
      [&](const proc::FaultMessage& fault) {
        waiting_.push_back({&client, fault});
      },
      [&](std::unique_ptr<LazyPagesMemory> child) { children.push_back(std::move(child)); });
  if (children.empty()) return;
  // Not while `receive` holds the memory's lock: make_orders takes both the other way round.
  std::lock_guard lock(mutex_);
  for (std::unique_ptr<LazyPagesMemory>& child : children) {
    Client& added = clients_.emplace_back();
    added.memory = std::move(child);
    added.hot = client.hot;
  }
  changed_.notify_all();
}

void LazyPagesService::answer_waiting() {
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    LazyPagesMemory& memory = *waiting.client->memory;
    if (!memory.closed() && memory.answer(waiting.fault) == LazyPagesMemory::Outcome::kAgain) return false;
    ++answered_;
    return true;
  });
}

void LazyPagesService::tell_problems(Client& client) {
  for (const std::string& problem : client.memory->take_problems()) {
    if (problems_++ < kMostProblems)
      log_.write(LazyPagesLog::Level::kProblem,
                 fmt::format("process {} gets SIGBUS at pages that cannot be read: {}", client.memory->pid(), problem));
  }
}

void LazyPagesService::let_go_of_finished() {
  for (Client& client : clients_) {
    LazyPagesMemory& memory = *client.memory;
    if (memory.closed()) continue;
    tell_problems(client);
    if (client.left.load() != 0 || (memory.must_stay() && !memory.ended())) continue;
    memory.close();
  }
}

/// Should it be killed, there is another one.
void LazyPagesService::look_after_guardian() {
  while (::waitpid(-1, nullptr, WNOHANG | __WALL) > 0) {
  }
  auto again = start_guardian(state_, log_);
  guardian_ = again ? std::move(*again) : UniqueFd();
}

/// False: nobody is left.
bool LazyPagesService::wait_for_messages() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {guardian_.get(), POLLIN, 0}, {go_.get(), POLLIN, 0}};
  const size_t others = polled.size();
  std::vector<Client*> open;
  bool some_stay = false;
  for (Client& client : clients_) {
    if (client.memory->closed()) continue;
    open.push_back(&client);
    some_stay = some_stay || client.memory->must_stay();
    polled.push_back({client.memory->userfault(), POLLIN, 0});
  }
  if (open.empty()) return false;
  ::poll(polled.data(), polled.size(), !waiting_.empty() ? kAgainMs : some_stay ? kLookForEndMs : -1);
  eventfd_t count = 0;
  if (polled[0].revents != 0) ::eventfd_read(wake_.get(), &count);
  if (polled[1].revents != 0) look_after_guardian();
  if (polled[2].revents != 0) hear_of_release();
  for (size_t i = 0; i < open.size(); ++i) {
    if (polled[i + others].revents != 0) receive(*open[i]);
    else if (open[i]->memory->must_stay()) open[i]->memory->look_for_end();
  }
  return true;
}

Result<void> LazyPagesService::begin_to_run() {
  for (Client& client : clients_) CKPT_TRY(client.memory->begin_to_run());
  return {};
}

void LazyPagesService::hear_of_release() {
  char byte = 0;
  if (::read(go_.get(), &byte, 1) == 1) return may_run_(begin_to_run());
  go_.reset();
  std::lock_guard lock(mutex_);
  going_ = true;
  changed_.notify_all();
}

Result<void> LazyPagesService::start_threads() {
  const unsigned count = WorkerPool::threads_for(0);
  for (std::thread thread; threads_.size() < count && start_thread(thread, [this] { bring_in(); });)
    threads_.push_back(std::move(thread));
  if (threads_.empty()) return no_thread("the lazy-pages daemon");
  return {};
}

void LazyPagesService::run(UniqueFd guardian, UniqueFd go, const std::function<void(const Result<void>&)>& may_run) {
  Stopwatch watch;
  guardian_ = std::move(guardian);
  go_ = std::move(go), may_run_ = may_run;
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  set_niceness(-20);  // whoever waits for an answer is stopped
  do {
    answer_waiting();
    let_go_of_finished();
  } while (wait_for_messages());
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  uint64_t pages = 0;
  for (const Client& client : clients_) pages += client.memory->pages_in();
  log_.write(LazyPagesLog::Level::kNote, fmt::format("all in: {} pages, {} accesses answered, {} problems, {} us",
                                                     pages, answered_, problems_, watch.elapsed_us()));
}

}  // namespace ckpt::restore
