#include "cli/ranks.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "cli/program_file.h"

namespace ckpt::cli {

std::optional<uint32_t> number_in(const char* name) {
  const char* text = std::getenv(name);
  uint32_t out = 0;
  if (text == nullptr) return std::nullopt;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), out);
  return error == std::errc() && *end == 0 ? std::optional(out) : std::nullopt;
}

void add_mpi_flag(VerbOptions& app, std::string& mpi) {
  app.add_option("--mpi", mpi, "The MPI that has started the ranks; auto: what its variables say")
      .type_name("MPI")
      .one_of({"auto", "openmpi", "mpich", "none"})
      .shows_default();
}

std::optional<mpi::Kind> launched_by(const std::string& mpi) {
  if (mpi == "openmpi") return mpi::Kind::kOpenMpi;
  if (mpi == "mpich") return mpi::Kind::kMpich;
  if (mpi == "none") return std::nullopt;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) return mpi::Kind::kOpenMpi;
  if (std::getenv("PMI_SIZE") != nullptr) return mpi::Kind::kMpich;
  if (std::getenv("PMIX_RANK") != nullptr) return mpi::Kind::kOpenMpi;
  return std::nullopt;
}

Result<std::unique_ptr<Transport>> connect_ranks(mpi::Kind kind) {
  auto plugin = find_library(mpi::plugin_name(kind));
  if (!plugin && kind == mpi::Kind::kMpich && std::getenv("SLURM_STEP_ID") != nullptr)
    return std::move(plugin).error().with_hint("srun --mpi=pmix connects by Open MPI what --mpi=pmi2 would by MPICH");
  CKPT_TRY(plugin);
  return mpi::start(kind, *plugin);
}

}  // namespace ckpt::cli
