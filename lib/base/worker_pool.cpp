#include "lib/base/worker_pool.h"

#include <csignal>
#include <exception>
#include <new>

#include "lib/base/threads.h"
#include "lib/base/trace.h"

namespace ckpt {

namespace {

/// An exception that left a thread would end the program, a borrowed target with it.
Result<void> run(const WorkerPool::Job& job) {
  try {
    return job();
  } catch (const std::bad_alloc&) {
    return fail(Code::kNoRoom, "", "out of memory");
  } catch (const std::exception& e) {
    return fail(Code::kBug, "", std::string("unexpected: ") + e.what());
  }
}

}  // namespace

WorkerPool::WorkerPool(unsigned threads, size_t queue_limit) {
  threads = threads_for(threads);
  limit_ = queue_limit == 0 ? 2 * threads : queue_limit;
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  workers_.reserve(threads);
  for (std::thread thread; workers_.size() < threads && start_thread(thread, [this] { work(); });)
    workers_.push_back(std::move(thread));
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

WorkerPool::~WorkerPool() {
  {
    std::lock_guard lock(mutex_);
    queue_.clear();
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : workers_) t.join();
}

bool WorkerPool::submit(Job job) {
  std::unique_lock lock(mutex_);
  if (workers_.empty() && !failed_) {  // no room for one: this thread does the job
    Result<void> done = run(job);
    failed_ = !done;
    if (failed_) error_ = std::move(done).error();
  }
  if (workers_.empty()) return !failed_;
  changed_.wait(lock, [&] { return failed_ || queue_.size() < limit_; });
  if (failed_) return false;
  queue_.push_back(std::move(job));
  changed_.notify_all();
  return true;
}

Result<void> WorkerPool::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && running_ == 0; });
  if (failed_) return error_;
  return {};
}

void WorkerPool::work() {
  trace::name_thread("worker");
  trace::prepare_thread();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    ++running_;
    changed_.notify_all();
    lock.unlock();
    Result<void> result = run(job);
    job = nullptr;
    lock.lock();
    --running_;
    if (!result && !failed_) {
      failed_ = true;
      error_ = std::move(result).error();
      queue_.clear();
    }
    changed_.notify_all();
  }
}

}  // namespace ckpt
