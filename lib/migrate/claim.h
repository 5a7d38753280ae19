// Who decides whether processes that were moved run: one file for each migration, in a folder that only this user may
// write. Whoever makes it first has decided: the one that lets them go, or one that asks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/migrate/words.h"

namespace ckpt::migrate {

/// Of the one that lets the processes go. Dropping it without `runs` says that it has not.
class Claim {
 public:
  /// As those see it who will ask.
  struct Process {
    int pid = 0;
    uint64_t start_time = 0;
    bool operator==(const Process&) const = default;
  };
  struct Tree {
    std::string pid_namespace;  ///< of the numbers
    std::vector<Process> processes;
  };
  /// A process and its descendants.
  static Result<std::vector<Process>> find(int root);
  /// kInterrupted: somebody has asked, and was told that they will never run. `lazily`: they run before all of their
  /// memory has come, and `runs` says no more than that.
  static Result<Claim> take(const std::string& id, const Tree& tree, bool lazily);
  Claim(Claim&&) noexcept = default;
  Claim& operator=(Claim&&) = delete;
  ~Claim();
  void runs();

 private:
  Claim(UniqueFd file, bool lazily) : file_(std::move(file)), lazily_(lazily) {}
  UniqueFd file_;  ///< locked for as long as it is not decided
  bool lazily_, decided_ = false;
};

/// Whether its file says so already, whoever is at it: nobody is waited for, and nothing is decided.
bool says_that_they_run(const std::string& id);
/// What became of migration `id`. Where nothing has yet, nothing ever will. Waits up to a few seconds for who is at it.
Result<Verdict> ask(const std::string& id);

/// Of a migration whose processes run before all of their memory has come: it has (kRuns), or never will (kLost).
Result<void> conclude(const std::string& id, Verdict verdict);
/// The pid namespaces of these that are not this process's own: whoever lives there belongs to them.
std::set<std::string> namespaces_of(const std::vector<Claim::Process>& processes);
/// They are stopped, until nobody new comes from them, and then killed, with their descendants, with who is in a group
/// or session that one of them leads, and with all who live in `namespaces`. kNot: none of them is left. kUnknown: some
/// are, after seconds.
Verdict end_all(std::vector<Claim::Process> processes, const std::set<std::string>& namespaces);

/// Nobody will ask any more.
void forget(const std::string& id);
/// What nobody has asked for in days.
void forget_old();

}  // namespace ckpt::migrate
