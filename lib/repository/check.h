// Is all there that should be, is it right, and what can be saved where it is not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/progress.h"
#include "lib/repository/repository.h"

namespace ckpt::repository {

struct CheckOptions {
  std::vector<std::string> names;  ///< empty: all, and every pack whether or not it is needed
  double percent = 100;            ///< of the groups of chunks that are read
  uint64_t seed = 0;               ///< which, where not all
  bool repair = false;             ///< of the whole store, while nobody pushes
};

struct Loss {
  std::string name, path;  ///< of a file; path empty: all of it
  uint64_t chunks = 0, bytes = 0;
};

struct CheckReport {
  std::vector<std::string> damage;            ///< of objects, one line each
  std::vector<Loss> losses;                   ///< what the names miss because of it
  std::vector<std::string> repaired;          ///< what was done, one line each
  uint64_t names = 0, chunks = 0, bytes = 0;  ///< that were looked at; bytes read from packs
  uint64_t us = 0;
};

/// kNotFound: there is no such name.
Result<CheckReport> check(Repository& repository, const CheckOptions& options, ProgressSink& progress);

}  // namespace ckpt::repository
