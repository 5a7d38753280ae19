// What the lazy-pages daemon does: one thread answers, the others bring in what nobody has asked for yet.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "lib/memory/lazy/guard.h"
#include "lib/memory/lazy/log.h"
#include "lib/memory/lazy/memory.h"

namespace ckpt::restore {

class LazyPagesService {
 public:
  /// `image`: loaded sparsely at least; its pages are loaded here.
  LazyPagesService(store::ImageReader& image, const LazyPagesLog& log, const LazyPagesState& state)
      : image_(image), log_(log), state_(state) {}

  /// `hot`: addresses in the image that are likely to be wanted first. Before `run`.
  void add(std::unique_ptr<LazyPagesMemory> memory, std::vector<uint64_t> hot);
  /// Its threads, which wait. kNoRoom: not one could be had.
  Result<void> start_threads();
  /// Until nothing is missing anywhere. A byte from `go` says that the processes are about to run, and `may_run` is
  /// told whether they may. Pages that nobody asks for wait for its other end to be closed: whoever builds the
  /// processes needs the processors until then.
  void run(UniqueFd guardian, UniqueFd go, const std::function<void(const Result<void>&)>& may_run);

 private:
  struct Client {
    std::unique_ptr<LazyPagesMemory> memory;
    std::vector<uint64_t> hot;
    std::vector<uint32_t> order;  ///< under mutex_; empty until pages are brought in
    size_t next = 0;              ///< in `order`; under mutex_
    std::atomic<size_t> left{1};  ///< blocks of `order` that are not in yet
    bool ordered = false;         ///< under mutex_
  };
  struct Job {
    Client* client = nullptr;
    size_t first = 0, last = 0;  ///< in its order
  };
  struct Waiting {
    Client* client;
    proc::FaultMessage fault;
  };

  void load_pages();
  void bring_in();
  void make_orders();
  Job next_job();
  void do_job(const Job& job);
  void receive(Client& client);
  void answer_waiting();
  void let_go_of_finished();
  void look_after_guardian();
  bool wait_for_messages();
  void hear_of_release();
  Result<void> begin_to_run();
  void tell_problems(Client& client);

  store::ImageReader& image_;
  std::once_flag loaded_;
  const LazyPagesLog& log_;
  const LazyPagesState& state_;
  UniqueFd guardian_, wake_, go_;
  std::function<void(const Result<void>&)> may_run_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Client> clients_;  ///< grows under mutex_; a client stays where it is
  bool going_ = false, stopping_ = false;  ///< under mutex_
  std::vector<Waiting> waiting_;
  uint64_t answered_ = 0, problems_ = 0;
};

/// Near the addresses of `hot` (in the image) first, then what the newest image of a chain holds, then the rest, each
/// by address. A recorded order of use would go here.
std::vector<uint32_t> order_of_blocks(const store::ImageReader& image, size_t first, size_t last,
                                      const std::vector<uint64_t>& hot);

}  // namespace ckpt::restore
