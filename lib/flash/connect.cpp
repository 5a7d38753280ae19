#include "lib/flash/connect.h"

#include <sys/socket.h>
#include <sys/un.h>

#include "lib/flash/place.h"

namespace ckpt::flash {

Result<UniqueFd> connect_agent(const std::string& directory, const std::string& socket) {
  CKPT_TRY_ASSIGN(const SocketPlace place, find_socket(directory, socket));
  UniqueFd out(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = place.address();
  if (!out || path.size() >= sizeof address.sun_path) return fail(Code::kUsage, place.shown, "cannot be named");
  path.copy(address.sun_path, path.size());
  if (::connect(out.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return Error(Code::kNotFound, directory, "has no agent").with_hint("ckpt agent " + directory + " starts one");
  if (!is_trusted_peer(out.get(), nullptr)) return fail(Code::kPermission, place.shown, "is another user's");
  return out;
}

Result<Answer> checked(Result<Answer> answer) {
  if (!answer || answer->reply.status == 0 || answer->reply.status >= 1000) return answer;
  for (Code code : {Code::kUsage, Code::kNotFound, Code::kPermission, Code::kUnsupported, Code::kBusy, Code::kIo,
                    Code::kNoRoom, Code::kCorrupt, Code::kInterrupted}) {
    if (exit_code(code) == answer->reply.status) return fail(code, "", answer->text);
  }
  return fail(Code::kBug, "", answer->text);
}

}  // namespace ckpt::flash
