// Reads what a checkpoint stores and compares it with what the checkpoint, a manifest or another checkpoint says about
// it.
#pragma once

#include <functional>
#include <map>

#include "formats/format.h"
#include "formats/pickle/scan.h"
#include "lib/model/verify/manifest.h"
#include "lib/model/verify/selection.h"
#include "lib/base/cancel.h"
#include "lib/base/progress.h"

namespace ckpt::model {

struct VerifyOptions {
  /// What is only odd is damage: CRCs that were not computed, bytes and files that nothing refers to, names in pickles
  /// that are not known to be harmless. Also checks the CRCs of files whose hash is compared.
  bool strict = false;
  /// Parameters without the optimizer state that others have, and the reverse, are damage.
  bool optimizer = false;
  /// Entries that cannot be read count for nothing in `against`.
  bool skip_unreadable = false;
  /// Names in pickles that are dangerous are odd, not damage.
  bool trust_pickles = false;
  /// Bytes, of the whole process: bounds how many shards are decoded at once.
  uint64_t max_memory = uint64_t{256} << 20;
  /// What a conversion wants to know before it begins: damage of what is to be written, but nothing that holds tensors
  /// is read (CRCs of those are compared as they are copied), nor are files hashed unless `hashes` says so.
  bool before_conversion = false, hashes = true;
  /// Which tensors and objects count; null: all.
  std::function<bool(std::string_view key)> wanted;
  bool objects = true;                       ///< objects and the common state count
  Selection selection;
  const Manifest* manifest = nullptr;        ///< hashes to compare; integrity.json is found by itself
  bool tensor_hashes = false;                ///< compare the manifest's tensors instead of its files
  const tensor::Catalog* against = nullptr;  ///< another checkpoint, of any format, that shall hold the same
};

/// A name that a loader of the checkpoint's pickles would import.
struct ImportedName {
  pickle::Classification classification;
  std::string file, key;   ///< the first place by file and offset
  uint64_t offset = 0;
  uint64_t places = 0;
};

/// A clause on a name that is not harmless: "loading it imports posix.system, which runs commands".
std::string import_text(const std::string& name, const pickle::Classification& classification, bool nested = false);

struct VerifyReport {
  std::vector<tensor::Finding> findings;  ///< damage first
  std::map<std::string, ImportedName> imports;
  uint64_t bytes_read = 0;
  uint64_t records = 0;                   ///< zip records whose CRC was compared
  uint64_t hashes = 0;                    ///< files and tensors whose hash was compared
  uint64_t compared = 0;                  ///< tensors compared with the other checkpoint's
  uint64_t unreadable = 0;                ///< entries that nobody could look at: each is a warning
};

/// Whether a checkpoint is whole and sound: `ckpt verify` and `ckpt convert` both ask here. `catalog` comes from a read
/// with locate_data and tolerate_damage, as does `against`. Memory: 1 MiB a thread, one decoded shard a thread where
/// shards are encoded (kNoRoom: one alone takes more than max_memory), and one pickle a thread.
Result<VerifyReport> verify(const tensor::Catalog& catalog, const VerifyOptions& options, ProgressSink& progress,
                            const Cancel& cancel);

/// A file that is no checkpoint: the pickles in it, bare, in a row, or in a zip whatever its state. Nothing: it holds
/// none.
std::optional<VerifyReport> scan_file(const std::filesystem::path& path, bool strict);

}  // namespace ckpt::model
