// From one checkpoint to another: reader, plan, writer, and a destination that is complete or absent.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "formats/writers.h"
#include "lib/base/cancel.h"
#include "lib/base/output.h"
#include "lib/base/progress.h"
#include "lib/model/convert/select.h"
#include "lib/model/convert/workspace.h"

namespace ckpt::model {

struct ConvertRequest {
  std::filesystem::path source, destination;
  std::string from = "auto";  ///< a name of formats(), or "auto"
  std::string to;             ///< a name of writers()
  SelectRequest select;
  formats::WriteOptions write;
  unsigned workers = 0;   ///< 0: one per core
  bool force = false;     ///< replace a destination that is there
  bool durable = true;    ///< on disk before it gets its name
  bool dry_run = false;   ///< everything but writing
  bool verify = false;  ///< compare the source's files with the hashes that it has; read the result again and compare,
                        ///< before it gets its name, or elsewhere before it may keep it
  bool allow_damage = false;   ///< go on where a CRC differs or an object lacks parts, with a note of each
  bool trust_pickles = false;  ///< pass on pickles that run code when they are loaded
  bool copy_siblings =
      false;  ///< also the files beside the checkpoint that are no part of it, never over one that is written
  bool resume =
      false;  ///< go on where a conversion that was killed stopped; leave what is done for the next if this one is
  PartOf part;            ///< of many processes; more than one imply `resume`
  /// Where the destination is no folder of this host: opens it, as one file or as a folder. Refuses (kUsage) one that
  /// is there, unless `force`: then its `commit` replaces it. Nothing is written there without that. `plan`: what an
  /// earlier attempt must have agreed on, and a later one; empty: none goes on.
  std::function<Result<std::unique_ptr<io::StagedOutput>>(bool one_file, const std::string& plan)> elsewhere;
};

struct ConvertReport {
  std::string source_format;
  std::vector<std::pair<std::string, uint64_t>> files;  ///< data files with their sizes
  uint64_t tensors = 0, objects = 0, shards = 0, excluded = 0;
  uint64_t payload_bytes = 0;  ///< of tensors and objects
  uint64_t total_bytes = 0;    ///< on disk; an estimate, slightly high, after a dry run
  uint64_t kept_files = 0;     ///< data files that an earlier run had made
  uint64_t duration_us = 0;    ///< reading the source's metadata included
  /// What took how long, in order: plan (the source's metadata and soundness), copy (bytes read and written), metadata
  /// (the files that describe them), verify, commit (synced, renamed).
  std::vector<std::pair<std::string, uint64_t>> phases_us;
  bool finished = true;        ///< false: other parts are still to come
  bool was_there =
      false;  ///< with --resume or a part: the destination holds files of these names and sizes, nothing was done
  bool verified = false;
  std::vector<tensor::Unreadable> skipped;  ///< of those left out, what could not be read
  std::vector<std::string> siblings;        ///< files and folders beside the source that were left there
  std::vector<std::string> notes;
};

/// kNotFound, kPermission: the source. kUsage: a destination that is not empty, or one that is the source, lies in it
/// or holds it. kNoRoom: the disk, found before anything is written where that can be known, or max_memory. kCorrupt:
/// what verify finds wrong with the source, in its words; kUnsupported: what of it cannot be read. kBusy: the part, or
/// the destination, is another process's; kUnsupported: parts elsewhere. On any failure the destination is
/// as it was (elsewhere, with `force`: or gone).
Result<ConvertReport> convert(const ConvertRequest& request, ProgressSink& progress, const Cancel& cancel);

}  // namespace ckpt::model
