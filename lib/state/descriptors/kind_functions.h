// What each row of CKPT_PLAIN_KINDS must define in its folder; a program where one is missing does not link.
#pragma once

#include <string>

#include "lib/base/result.h"
#include "lib/base/unique_fd.h"
#include "lib/state/descriptors/context.h"
#include "lib/state/descriptors/record.h"

namespace ckpt::capture {

/// capture.cpp: fills the kind's member of `d`, from /proc or from a duplicate of the descriptor.
#define CKPT_TAKE(Type, member, inode) Result<void> take_##member(const Place& place, store::Descriptor& d);
CKPT_PLAIN_KINDS(CKPT_TAKE)
#undef CKPT_TAKE

}  // namespace ckpt::capture

namespace ckpt::restore {

/// restore.cpp: makes it again, in ckpt.
#define CKPT_MAKE(Type, member, inode) Result<UniqueFd> make_##member(const store::Descriptor& descriptor);
CKPT_PLAIN_KINDS(CKPT_MAKE)
#undef CKPT_MAKE

}  // namespace ckpt::restore

namespace ckpt::state {

/// show.cpp: what `inspect` says of it, in a few words.
#define CKPT_SHOW(Type, member, inode) std::string show(const store::Type& member);
CKPT_PLAIN_KINDS(CKPT_SHOW)
#undef CKPT_SHOW

}  // namespace ckpt::state
