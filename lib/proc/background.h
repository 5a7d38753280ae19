// A child of ckpt's that is to stay when ckpt, its terminal and its session have ended.
#pragma once

namespace ckpt::proc {

/// In that child: a name (at most 15 bytes) and a session of its own, deaf to SIGINT, SIGTERM, SIGHUP, SIGUSR1 and
/// SIGPIPE, with no descriptor but `channel`, and /dev/null as 0 to 2. Returns the channel's number from now on.
int become_background(const char* name, int channel);

}  // namespace ckpt::proc
