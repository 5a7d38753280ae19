// Ranks that mpirun or srun has started, connected by the MPI that started them.
#pragma once

#include <memory>
#include <string>

#include "lib/base/transport.h"

namespace ckpt::mpi {

/// The MPIs that there may be a plug-in for, and the libraries that they are in.
enum class Kind { kOpenMpi, kMpich };
/// "libckpt-openmpi.so": it lies beside ckpt, or where its other libraries are.
std::string plugin_name(Kind kind);

/// Of errors that MPI itself gives: those of one rank are not those of another.
inline constexpr const char* kSubject = "MPI";

/// Loads the library and the plug-in, and starts MPI: once a process. The end of the transport ends it.
/// kUnsupported: one of them cannot be loaded.
Result<std::unique_ptr<Transport>> start(Kind kind, const std::string& plugin);

}  // namespace ckpt::mpi
