# Usage: find_package(gpuflame) and target_link_libraries(app gpuflame::gpuflame). A program that should use the library
# only if it is injected links gpuflame::headers instead.
get_filename_component(_gpuflame_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET gpuflame::gpuflame)
  add_library(gpuflame::gpuflame SHARED IMPORTED)
  set_target_properties(gpuflame::gpuflame PROPERTIES
    IMPORTED_LOCATION "${_gpuflame_prefix}/lib/libgpuflame.so.0"
    IMPORTED_SONAME "libgpuflame.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_gpuflame_prefix}/include")

  add_library(gpuflame::headers INTERFACE IMPORTED)
  set_target_properties(gpuflame::headers PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "GPUFLAME_HEADER_ONLY"
    INTERFACE_LINK_LIBRARIES "${CMAKE_DL_LIBS}"
    INTERFACE_INCLUDE_DIRECTORIES "${_gpuflame_prefix}/include")
endif()
unset(_gpuflame_prefix)
