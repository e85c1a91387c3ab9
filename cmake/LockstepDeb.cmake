# Debian packages by CPack: `lockstep` (the launcher, without libtorch) and `liblockstep-dev` (the library).
# tools/package deb builds them; packaging/debian has what is not CMake's.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lockstep)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_VENDOR "lockstep")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # each package has its own
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_THREADS 0)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL launcher)
set(CPACK_COMPONENT_LAUNCHER_GROUP launcher)
if(LOCKSTEP_TORCH)
  list(APPEND CPACK_COMPONENTS_ALL core library)
  set(CPACK_COMPONENT_CORE_GROUP library)
  set(CPACK_COMPONENT_LIBRARY_GROUP library)
endif()
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/packaging/debian/finish.cmake")

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The lockstep maintainers <maintainers@lockstep.invalid>")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_LAUNCHER_PACKAGE_NAME lockstep)
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_RECOMMENDS "libssl3")
set(CPACK_DEBIAN_LAUNCHER_PACKAGE_SUGGESTS "python3, gdb, liblockstep-dev")
string(CONCAT CPACK_DEBIAN_LAUNCHER_DESCRIPTION
  "launcher for distributed training jobs, in place of torchrun\n"
  "lockstep run starts the workers of a training job on one machine or many,\n"
  "watches them, replaces those that fail, and says what went wrong. It takes\n"
  "torchrun's options and gives workers torchrun's environment.\n"
  "\n"
  "It needs neither PyTorch nor Python; the programs that it starts bring theirs.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME liblockstep-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
# libtorch is in no Debian package, so dpkg-shlibdeps cannot be asked.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
    "libc6 (>= 2.34), libgcc-s1, libstdc++6 (>= 12), nlohmann-json3-dev")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS "cmake (>= 3.25), g++ (>= 4:12)")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "lockstep, libopenmpi3, python3-venv")
string(CONCAT CPACK_DEBIAN_LIBRARY_DESCRIPTION
  "distributed data-parallel training in C++ on libtorch (development files)\n"
  "Headers, libraries and the CMake package of lockstep: find_package(lockstep)\n"
  "gives lockstep::lockstep, lockstep::c and lockstep::core.\n"
  "\n"
  "libtorch is not part of it. It comes from the wheel of PyTorch ${LOCKSTEP_TORCH_VERSION}, the\n"
  "release that this package was built with (pip install torch==${LOCKSTEP_TORCH_VERSION}). CMake\n"
  "looks for it in -DLOCKSTEP_TORCH_DIR, in the variable TORCH_INSTALL_PREFIX, in\n"
  "CMAKE_PREFIX_PATH and in the python3 on the PATH, and programs that are linked\n"
  "then know where it is.")
include(CPack)
