# libckpt-flash.so: what trainers load. Of its own sources and a few of lib/base, so that it needs the C library alone.
if(CKPT_SANITIZE OR CKPT_FUZZ)
  return()
endif()
add_library(ckpt-flash SHARED
  lib/flash/client/client.cpp lib/flash/client/handle.cpp lib/flash/client/loads.cpp lib/flash/client/copy.cpp lib/flash/client/snapshot.cpp lib/flash/client/moved_pages.cpp lib/flash/client/fork_gate.cpp lib/flash/client/safe_point.cpp
  lib/flash/layout.cpp lib/flash/place.cpp lib/flash/channel.cpp lib/flash/connect.cpp
  lib/base/run_folder.cpp lib/base/fd_message.cpp lib/base/result.cpp lib/base/clock.cpp)
ckpt_unity(ckpt-flash 12)
target_include_directories(ckpt-flash PRIVATE ${PROJECT_SOURCE_DIR})
set_target_properties(ckpt-flash PROPERTIES
  CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
target_link_libraries(ckpt-flash PRIVATE Threads::Threads)
set(flash_exports ${PROJECT_SOURCE_DIR}/lib/flash/client/exports.map)
target_link_options(ckpt-flash PRIVATE -Wl,--version-script=${flash_exports} -Wl,-z,now -Wl,-z,relro -Wl,--no-undefined
  -static-libstdc++ -static-libgcc)
set_target_properties(ckpt-flash PROPERTIES LINK_DEPENDS ${flash_exports})
