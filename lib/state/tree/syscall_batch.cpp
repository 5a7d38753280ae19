#include "lib/state/tree/syscall_batch.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <algorithm>

#include "lib/base/threads.h"

namespace ckpt::restore {

void SyscallBatch::push(const char* what, Failure failure, long number, std::initializer_list<uint64_t> args) {
  Call call;
  call.number = static_cast<uint32_t>(number);
  call.may_fail = failure == kMayFail ? 1 : 0;
  std::copy(args.begin(), args.end(), call.args.begin());
  calls_.push_back(call);
  what_.push_back(what);
}

Error SyscallBatch::failure(size_t index) const {
  const Call& call = calls_[index];
  std::string text = fmt::format("cannot {}", what_[index]);
  const auto err = static_cast<int>(-call.result);
  return call.number == SYS_clone3 ? fork_error(err, "", std::move(text)) : sys_error(err, "", std::move(text));
}

}  // namespace ckpt::restore
