#!/bin/sh
set -e
echo "installing B-local"
