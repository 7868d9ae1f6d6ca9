#!/bin/sh
set -e
echo "installing engine-inside"
