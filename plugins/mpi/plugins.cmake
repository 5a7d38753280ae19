# libckpt-openmpi.so, libckpt-mpich.so: what connects ranks that mpirun has started, for each MPI whose headers are there.
# Neither names the library of MPI: ckpt loads it, and the package needs it no more than ckpt does.
if(CKPT_SANITIZE OR CKPT_FUZZ)
  return()
endif()
find_path(CKPT_OPENMPI_INCLUDE mpi.h PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/openmpi/include /usr/lib64/openmpi/include
          /usr/include/openmpi-${CMAKE_SYSTEM_PROCESSOR} NO_DEFAULT_PATH)
find_path(CKPT_MPICH_INCLUDE mpi.h PATHS /usr/include/${CMAKE_LIBRARY_ARCHITECTURE}/mpich /usr/include/mpich-${CMAKE_SYSTEM_PROCESSOR}
          NO_DEFAULT_PATH)
foreach(kind OPENMPI MPICH)
  if(CKPT_${kind}_INCLUDE)
    string(TOLOWER ckpt-${kind} plugin)
    add_library(${plugin} SHARED plugins/mpi/plugin.c)
    target_include_directories(${plugin} PRIVATE ${PROJECT_SOURCE_DIR})
    target_include_directories(${plugin} SYSTEM PRIVATE ${CKPT_${kind}_INCLUDE})
    target_compile_definitions(${plugin} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
    set_target_properties(${plugin} PROPERTIES NO_SONAME ON C_VISIBILITY_PRESET hidden LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_link_options(${plugin} PRIVATE -Wl,-z,relro -Wl,--as-needed)
    list(APPEND mpi_plugins ${plugin})
  endif()
endforeach()
message(STATUS "MPI: ${mpi_plugins} (optional)")
