#!/bin/sh
set -e
echo "installing java"
