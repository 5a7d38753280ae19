#include "lib/flash/place.h"

#include <fcntl.h>
#include <stdlib.h>

#include <memory>

#include "lib/base/run_folder.h"

namespace ckpt::flash {

namespace {

/// FNV-1a: no library is needed for it, and nobody gains by making two names meet.
std::string name_hash(const std::string& text) {
  uint64_t hash = 0xcbf2'9ce4'8422'2325;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3;
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; hash >>= 4) out[i] = "0123456789abcdef"[hash & 15];
  return out;
}

}  // namespace

Result<SocketPlace> find_socket(const std::string& directory, const std::string& socket) {
  SocketPlace out;
  if (!socket.empty()) {
    const size_t slash = socket.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : socket.substr(0, slash);
    out.name = slash == std::string::npos ? socket : socket.substr(slash + 1);
    out.shown = socket;
    if (out.name.empty() || out.name.size() > 80) return fail(Code::kUsage, socket, "is no name for a socket");
    out.folder.reset(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!out.folder) return sys_error(folder, "cannot open");
    return out;
  }
  const std::unique_ptr<char, void (*)(void*)> real(::realpath(directory.c_str(), nullptr), ::free);
  if (!real) return sys_error(directory, "cannot find the checkpoint folder");
  CKPT_TRY_ASSIGN(out.folder, open_run_folder());
  out.name = "flash-" + name_hash(real.get()) + ".sock";
  out.shown = "the socket of the agent of " + directory;
  return out;
}

}  // namespace ckpt::flash
