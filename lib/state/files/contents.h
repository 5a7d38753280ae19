// Files whose content goes with an image, though they are there under their names: capture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/result.h"
#include "lib/store/process_image.h"

namespace ckpt::state {

/// Of which files the processes use the image has the content.
struct FileContents {
  bool written = false;            ///< open, or mapped, for writing; or written and closed, where that is tracked
  bool open = false;               ///< those, and what descriptors read
  std::vector<std::string> paths;  ///< patterns (fnmatch) of files in use; a path without wildcards: of any file
  bool any() const { return written || open || !paths.empty(); }
};

/// Bytes of a file, holes included, that a memory space has addresses for.
inline constexpr uint64_t kMostContent = uint64_t{1} << 47;

/// Whether the image has the content of a file that has a name: that its memory space has a number says so.
bool has_content(const store::FileIdentity& file);

}  // namespace ckpt::state

namespace ckpt::capture {

struct Inventory;
class FileTable;

/// After all files in use are known: opens those whose content is to be read, by the same inode, and gives their
/// memory spaces a preliminary number. Of several names of one file the first has the content. What is larger than
/// `limit`, or leased, becomes a blocker. kUsage: a path names no regular file, or leads through a link. kIo: a
/// tracker (tracker.h) does not tell all.
Result<void> take_contents(Inventory& out, FileTable& files, const state::FileContents& what, uint64_t limit);

}  // namespace ckpt::capture
