#!/bin/sh
set -e
echo "installing addon"
