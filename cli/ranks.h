// Ranks that a launcher has started: which MPI connects them, and what its variables say.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/verb_options.h"
#include "lib/base/transport.h"
#include "plugins/mpi/transport.h"

namespace ckpt::cli {

/// A number that a launcher has set.
std::optional<uint32_t> number_in(const char* name);

/// --mpi
void add_mpi_flag(VerbOptions& app, std::string& mpi);
/// By the value of --mpi. Nothing: no MPI has started this process.
std::optional<mpi::Kind> launched_by(const std::string& mpi);

/// Starts MPI, once a process.
Result<std::unique_ptr<Transport>> connect_ranks(mpi::Kind kind);

}  // namespace ckpt::cli
