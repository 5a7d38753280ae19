// The agent's end of the conversation: where it listens, whom it accepts, one message in and out.
#pragma once

#include <cstdint>
#include <string>

#include "plugins/cuda/agent_message.h"

namespace ckpt::interposer {

/// A descriptor that the program may close behind our back, and use its number again: closed only while it is still
/// ours.
class OwnFd {
 public:
  /// Moved to a high number, out of the way of programs that count on low ones.
  void set(int fd);
  void close();
  /// Without closing: in a forked child that number is its own affair.
  int get() const { return fd_; }

 private:
  int fd_ = -1;
  uint64_t device_ = 0, inode_ = 0;
};

/// At a new address. False: it cannot be.
bool listen_for_clients(OwnFd* listener);
/// The file of the address, where it is one. A forked child leaves its parent's alone.
void remove_socket_file();
enum class Accepted { kClient, kNobody, kBroken };
/// kBroken: the listener is gone or another file. Whoever is neither root nor of our user is sent away.
Accepted accept_client(const OwnFd& listener, OwnFd* client);

/// False: the peer is gone. What is not whole has no magic.
bool receive(int socket, agent::Received* in);
bool send(int socket, const agent::Message& message, const std::string& payload, int fd);

/// /proc/self/stat's; 0: unknown.
uint64_t start_time();

}  // namespace ckpt::interposer
