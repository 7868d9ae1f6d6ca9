#!/bin/sh
set -e
echo "installing lint"
