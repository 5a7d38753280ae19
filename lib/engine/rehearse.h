// verify --rehearse, dump --rehearse: whether an image would be restored as it was, found out by doing it where nobody
// notices.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/base/cancel.h"
#include "lib/base/result.h"
#include "lib/store/image.h"

namespace ckpt::engine {

struct Rehearsal {
  std::vector<std::string> differences;  ///< none: it would be restored as it was
  std::vector<std::string> left_out;     ///< external resources, which were not rehearsed
  std::vector<std::string> notes;        ///< what restore would say
  uint64_t processes = 0, threads = 0, pages = 0;
  uint64_t us = 0;
};

/// Makes the processes of the image in namespaces of their own (sealed.h), reads their state back as a dump does,
/// compares all of it and every page with the image, and takes them away; none of them runs a step. It needs the memory
/// that the processes need. That they cannot be made is a difference. The Error is of what says nothing about the
/// image: kPermission, kNoRoom, kInterrupted, or an image that cannot be opened. `trust`: whose images it takes, as
/// restore does.
Result<Rehearsal> rehearse(const std::filesystem::path& image, store::Trust trust, const Cancel& cancel);

}  // namespace ckpt::engine
