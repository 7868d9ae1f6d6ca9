#!/bin/sh
set -e
echo "installing a_local"
