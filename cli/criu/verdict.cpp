#include "cli/criu/verdict.h"

#include <sys/mman.h>
#include <unistd.h>

#include "cli/criu/verdict.pb.h"
#include "lib/base/io.h"

namespace ckpt::cli::criu {

Verdict::Verdict() : fd_(::memfd_create("ckpt-verdict", MFD_CLOEXEC)) {}

void Verdict::set(const Error& error) const {
  criu_verdict::Verdict message;
  message.set_code(static_cast<int>(error.code));
  message.set_sys_errno(error.sys_errno);
  message.set_subject(error.subject);
  message.set_message(error.message);
  message.set_hint(error.hint);
  message.set_target_state(error.target_state);
  for (const std::string& cause : error.causes) message.add_causes(cause);
  const std::string text = message.SerializeAsString();
  (void)!::pwrite(fd_.get(), text.data(), text.size(), 0);
}

Error Verdict::get() const {
  constexpr uint64_t kLimit = 16 << 20;
  ::lseek(fd_.get(), 0, SEEK_SET);
  auto text = io::read_all(fd_.get(), kLimit, "verdict");
  criu_verdict::Verdict message;
  if (!text || text->empty() || !message.ParseFromString(*text))
    return Error(Code::kInterrupted, "ckpt's worker", "was ended, or says why on standard error");
  Error out(static_cast<Code>(message.code()), message.subject(), message.message());
  out.sys_errno = message.sys_errno();
  out.hint = message.hint(), out.target_state = message.target_state();
  out.causes.assign(message.causes().begin(), message.causes().end());
  return out;
}

}  // namespace ckpt::cli::criu
