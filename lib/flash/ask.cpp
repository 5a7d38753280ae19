#include "lib/flash/ask.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>

#include "lib/flash/channel.h"
#include "lib/flash/connect.h"

namespace ckpt::flash {

Result<std::string> agent_status(const std::string& directory, const std::string& socket) {
  CKPT_TRY_ASSIGN(const UniqueFd agent, connect_agent(directory, socket));
  Request request;
  request.type = static_cast<uint16_t>(Type::kStatus);
  CKPT_TRY_ASSIGN(const Answer answer, checked(ask(agent.get(), request, {}, -1, 10'000)));
  return answer.text;
}

Result<Persisted> ask_persist(const std::string& directory, const std::string& socket, uint64_t step,
                              const std::string& folder, bool wait) {
  CKPT_TRY_ASSIGN(const UniqueFd agent, connect_agent(directory, socket));
  Request request;
  request.type = static_cast<uint16_t>(Type::kPersist);
  request.step = step;
  request.flags = wait ? kWait : 0;
  std::error_code ec;
  const std::string where = folder.empty() ? "" : std::filesystem::absolute(folder, ec).string();
  CKPT_TRY_ASSIGN(const Answer answer, checked(ask(agent.get(), request, where, -1, wait ? -1 : 10'000)));
  const Reply& reply = answer.reply;
  return Persisted{reply.step, reply.value[0], reply.value[1], reply.value[2], reply.value[3], wait, answer.text};
}

}  // namespace ckpt::flash
